"""Takes prepared jobs in: stores them, then announces them."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from jobs.broker import Announcer
from jobs.domain.jobs import Job, NewJob
from jobs.settings import Settings
from jobs.store import intake, sweeps
from jobs.store.tenants import Tenant
from producer.prepare import Idempotency, Preparer
from producer.refusals import Code, Refusal
from producer.request import Request

log = structlog.get_logger()


class Submitter:
    """Takes jobs in for one database; safe in threads. `engine` answers this process's own pool."""

    def __init__(self, settings: Settings, engine: Callable[[], Engine], announcer: Announcer) -> None:
        """Open nothing yet."""
        self.preparer = Preparer(settings)
        self._engine, self._announcer = engine, announcer
        self._window = settings.feed.window

    def submit(
        self, tenant: Tenant, request: Request | bytes, idempotency: Idempotency | None = None
    ) -> intake.Accepted:
        """Prepare, store and announce one request (a model, or a JSON body).

        A repeat of a key answers its job before anything else is looked at. Raises `Refusal`, or what
        `jobs.store.engine.is_away` knows; then nothing was stored.
        """
        held = self.repeated(tenant, idempotency) if idempotency else None
        if held is not None:
            return intake.Accepted(held, created=False, announce=False)
        return self.store(self.preparer.one(tenant, request, idempotency))

    def repeated(self, tenant: Tenant, idempotency: Idempotency) -> Job | None:
        """The job that holds this key, or None. Raises `Refusal` where its payload was another."""
        try:
            with self._engine().begin() as connection:
                return intake.repeated(connection, tenant.id, idempotency.key, idempotency.payload_hash)
        except intake.IdempotencyConflict as conflict:
            raise Idempotency.conflict(f"job {conflict.job_id}") from None

    def store(
        self, job: NewJob, beside: Callable[[Connection], None] = lambda connection: None
    ) -> intake.Accepted:
        """Store a prepared job and, after the commit, announce it if its queue has room.

        `beside` stores what hangs on a new job, in the same transaction.
        """
        try:
            with self._engine().begin() as connection:
                accepted = intake.insert(connection, job, self._window)
                if accepted.created:
                    beside(connection)
        except intake.IdempotencyConflict as conflict:
            raise Idempotency.conflict(f"job {conflict.job_id}") from None
        if accepted.announce and not self._announcer.announce(job.queue, [str(job.id)]):
            self._give_back(job.id)
        return accepted

    def submit_many(self, tenant: Tenant, requests: Sequence[Request | Mapping[str, Any]]) -> list[uuid.UUID]:
        """Store many requests by COPY, all or none; the feeder announces them within moments.

        Raises `Refusal`, whose field begins with the request's position.
        """
        if any("idempotency_key" in request for request in requests if isinstance(request, Mapping)):
            raise Refusal(
                Code.IDEMPOTENCY_UNSUPPORTED,
                "COPY cannot answer the job that holds a key already",
                field="idempotency_key",
                remedy="Submit requests that have keys one by one.",
            )
        jobs = self.preparer.many(tenant, requests)
        with self._engine().begin() as connection:
            intake.insert_many(connection, jobs)
        return [job.id for job in jobs]

    def _give_back(self, job_id: uuid.UUID) -> None:
        """Let the feeder announce it; should that fail too, the sweeper finds it."""
        try:
            with self._engine().begin() as connection:
                sweeps.mark_unannounced(connection, [job_id])
        except SQLAlchemyError as error:
            log.warning("announcement.not_given_back", job_id=str(job_id), error=type(error).__name__)
