"""Takes requests in: over HTTP, and from Python in any process that has a database and a Redis address.

    from producer import enqueue_chat, wait

    job_id = enqueue_chat("What is a queue?", priority=2)
    print(wait(job_id, timeout_s=60).result.output)

These functions share one `Client`, made at the first call from `TRILANE_DATABASE_URL` and
`TRILANE_REDIS_URL`; make a `Client` of your own for other addresses.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Unpack

from jobs.domain.jobs import Status
from jobs.domain.lanes import Kind
from producer.client import DEFAULT_TENANT, Client, Options
from producer.refusals import Code, Refusal
from producer.request import ChatMessage, Request, WebhookTarget
from producer.views import JobView

__all__ = [
    "ChatMessage",
    "Client",
    "Code",
    "JobView",
    "Kind",
    "Options",
    "Refusal",
    "Request",
    "Status",
    "WebhookTarget",
    "cancel",
    "enqueue_chat",
    "enqueue_report",
    "enqueue_ticket",
    "get",
    "status",
    "submit",
    "submit_many",
    "wait",
]

Prompt = str | Sequence[Mapping[str, str]]


def enqueue_chat(prompt: Prompt, **options: Unpack[Options]) -> str:
    """Enqueue a live chat turn: a text, or messages with role and content. Returns the job's id."""
    return shared_client().enqueue(Kind.CHAT, prompt, **options)


def enqueue_ticket(prompt: Prompt, **options: Unpack[Options]) -> str:
    """Enqueue a support ticket. Returns the job's id."""
    return shared_client().enqueue(Kind.TICKET, prompt, **options)


def enqueue_report(prompt: Prompt, **options: Unpack[Options]) -> str:
    """Enqueue a report or other offline work. Returns the job's id."""
    return shared_client().enqueue(Kind.REPORT, prompt, **options)


def submit(request: Request, *, tenant: str = DEFAULT_TENANT, idempotency_key: str | None = None) -> str:
    """`Client.submit` of the shared client."""
    return shared_client().submit(request, tenant=tenant, idempotency_key=idempotency_key)


def submit_many(
    requests: Sequence[Request | Mapping[str, Any]], *, tenant: str = DEFAULT_TENANT
) -> list[str]:
    """`Client.submit_many` of the shared client."""
    return shared_client().submit_many(requests, tenant=tenant)


def get(job_id: str, *, tenant: str = DEFAULT_TENANT) -> JobView:
    """`Client.get` of the shared client."""
    return shared_client().get(job_id, tenant=tenant)


def status(job_id: str, *, tenant: str = DEFAULT_TENANT) -> Status:
    """`Client.status` of the shared client."""
    return shared_client().status(job_id, tenant=tenant)


def cancel(job_id: str, *, tenant: str = DEFAULT_TENANT) -> JobView:
    """`Client.cancel` of the shared client."""
    return shared_client().cancel(job_id, tenant=tenant)


def wait(job_id: str, timeout_s: float | None = None, *, tenant: str = DEFAULT_TENANT) -> JobView:
    """`Client.wait` of the shared client."""
    return shared_client().wait(job_id, timeout_s, tenant=tenant)


@cache
def shared_client() -> Client:
    """The client of the functions of this module."""
    return Client()
