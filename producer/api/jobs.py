"""The routes of jobs: submit, get, list, cancel, redrive."""

import asyncio
import uuid
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from jobs.domain.jobs import Job, Status
from jobs.domain.lanes import Kind
from jobs.store import reads
from jobs.store.tenants import Tenant
from producer import moves
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Services, Shared
from producer.prepare import MAX_KEY_CHARS, Idempotency
from producer.refusals import Code, Refusal
from producer.request import Moment
from producer.views import JobSummary, JobView

router = APIRouter(tags=["jobs"])

_EXAMPLES = {
    "chat": {"value": {"kind": "chat", "prompt": "What is a queue?", "max_tokens": 60}},
    "ticket": {
        "value": {
            "kind": "ticket",
            "messages": [
                {"role": "system", "content": "Answer politely and in two sentences."},
                {"role": "user", "content": "My parcel has not come."},
            ],
            "priority": 2,
            "metadata": {"ticket": "4711"},
            "webhook": {"url": "https://example.com/hooks/trilane", "events": ["job.succeeded"]},
        }
    },
    "report": {
        "value": {"kind": "report", "prompt": "Sum up the following minutes: ...", "deadline_s": 7200}
    },
}
_SUBMIT_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Request"}, "examples": _EXAMPLES}
        },
    }
}


@router.post(
    "/v1/jobs",
    status_code=202,
    openapi_extra=_SUBMIT_BODY,
    responses={
        200: {"model": JobView, "description": "A repeat: the job that holds this key already"},
        **responses(400, 404, 409, 413, 422, 429),
    },
)
async def submit(
    request: Request,
    response: Response,
    tenant: CurrentTenant,
    services: Shared,
    idempotency_key: Annotated[
        str | None,
        Header(
            description=f"Makes a repeat safe: the same key and body answer the same job, another body is a"
            f" conflict. At most {MAX_KEY_CHARS} characters."
        ),
    ] = None,
) -> JobView:
    """Accept a job. The answer comes once it is stored; it then runs in its lane when its turn comes."""
    body = await _body(request, services.settings.api.max_body_bytes)
    idempotency = Idempotency.of(idempotency_key, "POST /v1/jobs", body)
    job, created = await _accept(request, services, tenant, body, idempotency)
    response.headers["Location"] = f"/v1/jobs/{job.id}"
    if created:
        services.metrics.submitted.labels(job.kind.value, job.lane).inc()
        return JobView.accepted(job)
    response.status_code = 200
    response.headers["Idempotent-Replayed"] = "true"
    return JobView.of_detail(await services.transact(moves.found, tenant.id, job.id))


async def _accept(
    request: Request, services: Services, tenant: Tenant, body: bytes, idempotency: Idempotency | None
) -> tuple[Job, bool]:
    """The job, and whether it is new."""
    submitter = services.submitter
    held = await services.run(submitter.repeated, tenant, idempotency) if idempotency else None
    if held is not None:
        return held, False
    # Not among the database's threads: counting takes the processor, a webhook's name server its time.
    prepared = await asyncio.to_thread(submitter.preparer.one, tenant, body, idempotency)
    await services.limits.take(request, tenant.id, prepared)
    accepted = await services.run(submitter.store, prepared)
    return accepted.job, accepted.created


async def _body(request: Request, limit: int) -> bytes:
    """The body, given up as soon as it passes `limit` bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit:
            raise Refusal(
                Code.BODY_TOO_LARGE,
                "The body is larger than the limit in bytes",
                limit=limit,
                remedy="Shorten the prompt.",
            )
    return bytes(body)


@router.get("/v1/jobs/{job_id}", responses=responses(404))
async def get_job(job_id: str, tenant: CurrentTenant, services: Shared) -> JobView:
    """A job with its result, once it succeeded, and the latency of each of its attempts."""
    return JobView.of_detail(await services.transact(moves.found, tenant.id, moves.id_of(job_id)))


class Listing(BaseModel):
    """What a list is narrowed to; times are of acceptance."""

    model_config = ConfigDict(extra="forbid")

    lane: str | None = None
    status: Status | None = None
    kind: Kind | None = None
    created_after: Moment | None = Field(default=None, description="This moment or later.")
    created_before: Moment | None = Field(default=None, description="Earlier than this moment.")
    limit: int = Field(default=20, ge=1, le=100)
    after: uuid.UUID | None = Field(default=None, description="`next` of the page before.")


class JobList(BaseModel):
    """One page of jobs, newest first."""

    data: Sequence[JobSummary]
    has_more: bool
    next: uuid.UUID | None = Field(description="The cursor of the next page, if there is one.")


@router.get("/v1/jobs", responses=responses(422))
async def list_jobs(query: Annotated[Listing, Query()], tenant: CurrentTenant, services: Shared) -> JobList:
    """The tenant's jobs, newest first, without their texts."""
    if query.lane is not None and query.lane not in services.settings.lanes:
        names = ", ".join(services.settings.lanes)
        raise Refusal(Code.UNKNOWN_LANE, "No such lane", field="lane", limit=names)
    wanted = reads.Filter(query.lane, query.status, query.kind, query.created_after, query.created_before)
    found = await services.transact(reads.listing, tenant.id, wanted, query.limit + 1, query.after)
    page, has_more = found[: query.limit], len(found) > query.limit
    return JobList(
        data=[JobSummary.of(job) for job in page], has_more=has_more, next=page[-1].id if has_more else None
    )


@router.post("/v1/jobs/{job_id}/cancel", responses=responses(404, 409))
async def cancel_job(job_id: str, tenant: CurrentTenant, services: Shared) -> JobView:
    """Cancel a queued or running job; a running one frees its place within moments."""
    which = moves.id_of(job_id)
    return JobView.of_detail(
        await services.run(moves.cancel, services.engine, services.announcer, tenant.id, which)
    )


@router.post("/v1/jobs/{job_id}/redrive", responses=responses(404, 409))
async def redrive_job(job_id: str, tenant: CurrentTenant, services: Shared) -> JobView:
    """Queue a failed job again, with a new budget of attempts and as much time as it had."""
    which = moves.id_of(job_id)
    return JobView.of_detail(await services.run(moves.redrive, services.engine, tenant.id, which))
