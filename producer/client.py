"""The queue from Python: a client for any process that has a database and a Redis address."""

import hashlib
import math
import os
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

from pydantic import ValidationError
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import Engine

from jobs import settings as settings_module
from jobs.broker import Announcer
from jobs.domain.jobs import Status
from jobs.domain.lanes import Kind
from jobs.settings import Settings
from jobs.store import reads, tenants
from jobs.store.engine import open_engine
from jobs.store.tenants import Tenant
from producer import moves
from producer.ends import EndHint
from producer.prepare import Idempotency
from producer.request import Request, refusal_of
from producer.submitter import Submitter
from producer.views import JobView

DEFAULT_TENANT = "default"
_POLL_S = 1.0  # hints come at once; this is for when they stay away


class Options(TypedDict, total=False):
    """What `enqueue_*` take besides the prompt: the fields of `Request`, and whose job it is."""

    model: str
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    stop: str | list[str]
    presence_penalty: float
    frequency_penalty: float
    top_k: int
    min_p: float
    n: int
    logprobs: bool
    top_logprobs: int
    logit_bias: Mapping[str, float]
    bad_words: list[str]
    response_format: Mapping[str, Any]
    windows: bool
    lane: str
    priority: int
    deadline_s: float
    not_before: datetime
    max_attempts: int
    metadata: dict[str, str]
    webhook: Mapping[str, Any]
    tenant: str
    idempotency_key: str


class Client:
    """Submits jobs and asks for them; safe in threads and across a fork.

    Every method raises `Refusal` for what cannot be done, and SQLAlchemy's errors while the database is
    away; Redis may be away. `tenant` names whose jobs they are; a new name makes a new tenant.
    """

    def __init__(
        self,
        database_url: str | None = None,
        redis_url: str | None = None,
        *,
        settings: Settings | None = None,
        pool_size: int = 4,
    ) -> None:
        """Connect to nothing yet. What is not given comes from the settings (`TRILANE_...`)."""
        given = {"database_url": database_url, "redis_url": redis_url}
        self._settings = settings or settings_module.load(**{k: v for k, v in given.items() if v is not None})
        settings_module.require_servers(self._settings)
        self._pool_size = pool_size
        self._of_process: tuple[int, Engine] | None = None
        self._tenants: dict[str, Tenant] = {}
        self._announcer = Announcer(self._settings)
        self._submitter = Submitter(self._settings, self._engine, self._announcer)
        # redis-py's pool notices a fork by itself.
        self._redis = Redis.from_url(
            self._settings.redis_url,
            socket_connect_timeout=0.5,
            socket_timeout=5.0,
            retry=Retry(NoBackoff(), 0),
        )

    def submit(
        self, request: Request, *, tenant: str = DEFAULT_TENANT, idempotency_key: str | None = None
    ) -> str:
        """Store and announce one job; returns its id. A repeated key and request answer the first's."""
        idempotency = None
        if idempotency_key is not None:
            payload = request.model_dump_json(exclude_defaults=True).encode()
            idempotency = Idempotency(idempotency_key, hashlib.sha256(payload).digest())
        whose = self._tenant(tenant, signing=bool(request.webhook and not request.webhook.secret))
        return str(self._submitter.submit(whose, request, idempotency).job.id)

    def submit_many(
        self, requests: Sequence[Request | Mapping[str, Any]], *, tenant: str = DEFAULT_TENANT
    ) -> list[str]:
        """Store many jobs, all or none, at several times the rate of `submit`; returns their ids in order.

        The feeder of the control process announces them. Idempotency keys are refused.
        """
        return [str(job_id) for job_id in self._submitter.submit_many(self._tenant(tenant), requests)]

    def enqueue(
        self, kind: Kind, prompt: str | Sequence[Mapping[str, str]], **options: Unpack[Options]
    ) -> str:
        """Submit a prompt, or a list of messages with role and content; returns the job's id."""
        fields: dict[str, Any] = dict(options)
        tenant, key = fields.pop("tenant", DEFAULT_TENANT), fields.pop("idempotency_key", None)
        fields["prompt" if isinstance(prompt, str) else "messages"] = (
            prompt if isinstance(prompt, str) else list(prompt)
        )
        try:
            request = Request.model_validate({"kind": kind, **fields})
        except ValidationError as error:
            raise refusal_of(error.errors(include_url=False, include_input=False)) from None
        return self.submit(request, tenant=tenant, idempotency_key=key)

    def get(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> JobView:
        """The job with its result and latency."""
        whose, which = self._tenant(tenant).id, moves.id_of(job_id)
        with self._engine().begin() as connection:
            return JobView.of_detail(moves.found(connection, whose, which))

    def status(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> Status:
        """Where the job stands."""
        whose, which = self._tenant(tenant).id, moves.id_of(job_id)
        with self._engine().begin() as connection:
            job = reads.get(connection, whose, which)
        if job is None:
            raise moves.not_found()
        return job.status

    def cancel(self, job_id: str, *, tenant: str = DEFAULT_TENANT) -> JobView:
        """Cancel a queued or running job; one that was cancelled before is answered as it is."""
        whose, which = self._tenant(tenant).id, moves.id_of(job_id)
        return JobView.of_detail(moves.cancel(self._engine(), self._announcer, whose, which))

    def wait(self, job_id: str, timeout_s: float | None = None, *, tenant: str = DEFAULT_TENANT) -> JobView:
        """The job once it has ended, whichever way. Raises `TimeoutError` after `timeout_s` seconds."""
        until = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with EndHint(self._redis, str(moves.id_of(job_id))) as hint:
            while not self.status(job_id, tenant=tenant).terminal:
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise TimeoutError(f"job {job_id} has not ended within {timeout_s} s")
                hint.wait(min(_POLL_S, left_s))
        return self.get(job_id, tenant=tenant)

    def close(self) -> None:
        """Close the connections of this process; the client opens new ones if it is used again."""
        if self._of_process and self._of_process[0] == os.getpid():
            self._of_process[1].dispose()
        self._of_process = None
        self._announcer.close()
        self._redis.close()

    def _engine(self) -> Engine:
        # Two threads may both make a pool at first: the one that loses holds no connection yet.
        if self._of_process is None or self._of_process[0] != os.getpid():
            if self._of_process:
                self._of_process[1].dispose(close=False)  # The connections are the parent's.
            self._of_process = (os.getpid(), open_engine(self._settings.database_url, self._pool_size))
        return self._of_process[1]

    def _tenant(self, name: str, *, signing: bool = False) -> Tenant:
        """The tenant, made if it is missing; asked anew where its secret is needed and was not there."""
        known = self._tenants.get(name)
        if known is None or (signing and known.signing_secret is None):
            with self._engine().begin() as connection:
                known = tenants.get_or_create(connection, name)
            self._tenants[name] = known
        return known
