"""Takes new jobs in: one at a time, idempotent per tenant and key, or many at once by COPY."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from jobs.domain.jobs import Job, NewJob
from jobs.store.rows import JOB_COLUMNS, job_of


class IdempotencyConflict(Exception):
    """The tenant used this key for another payload; `job_id` is the job that holds it."""

    def __init__(self, job_id: uuid.UUID) -> None:
        self.job_id = job_id
        super().__init__(f"the idempotency key belongs to job {job_id}, made from another payload")


@dataclass(frozen=True, slots=True)
class Accepted:
    """What `insert` answers: `created` is false for a repeated key; `announce` asks for a message now."""

    job: Job
    created: bool
    announce: bool


_COLUMNS = (
    "id",
    "tenant_id",
    "kind",
    "model",
    "lane",
    "priority",
    "queue",
    "request",
    "prompt_tokens",
    "prefix",
    "metadata",
    "webhook_url",
    "webhook_events",
    "webhook_secret",
    "idempotency_key",
    "payload_hash",
    "deadline",
    "not_before",
    "max_attempts",
    "surface",
)

# A new job is announced at once while its queue has room and nothing older waits for the feeder; this
# bounds Redis without asking it. MATERIALIZED: the room is counted once, however often the answer is used.
_INSERT = text(
    f"""
    WITH given AS MATERIALIZED (
        SELECT CAST(:id AS uuid) AS id, CAST(:tenant_id AS uuid) AS tenant_id, CAST(:kind AS text) AS kind,
               CAST(:model AS text) AS model, CAST(:lane AS text) AS lane,
               CAST(:priority AS smallint) AS priority, CAST(:queue AS text) AS queue,
               CAST(:request AS jsonb) AS request, CAST(:prompt_tokens AS int) AS prompt_tokens,
               CAST(:prefix AS bigint) AS prefix, CAST(:metadata AS jsonb) AS metadata,
               CAST(:webhook_url AS text) AS webhook_url, CAST(:webhook_events AS text[]) AS webhook_events,
               CAST(:webhook_secret AS text) AS webhook_secret,
               CAST(:idempotency_key AS text) AS idempotency_key,
               CAST(:payload_hash AS bytea) AS payload_hash, CAST(:deadline AS timestamptz) AS deadline,
               CAST(:not_before AS timestamptz) AS not_before, CAST(:max_attempts AS int) AS max_attempts,
               CAST(:surface AS text) AS surface,
               (CAST(:not_before AS timestamptz) IS NULL OR CAST(:not_before AS timestamptz) <= now())
               AND NOT EXISTS (
                   SELECT 1 FROM jobs WHERE queue = :queue
                   AND status = 'queued' AND announced_at IS NULL AND due_at IS NULL)
               AND (SELECT count(*) FROM (
                   SELECT 1 FROM jobs WHERE queue = :queue
                   AND status = 'queued' AND announced_at IS NOT NULL LIMIT :window) AS standing) < :window
               AS announce
    )
    INSERT INTO jobs ({", ".join(_COLUMNS)}, ready_at, due_at, announced_at, announcements)
    SELECT {", ".join(_COLUMNS)},
           greatest(now(), not_before),
           CASE WHEN not_before > now() THEN not_before END,
           CASE WHEN announce THEN clock_timestamp() END,
           announce::int
    FROM given
    ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
    RETURNING {JOB_COLUMNS}, announced_at IS NOT NULL AS announce
    """
)

_BY_KEY = text(
    f"SELECT {JOB_COLUMNS}, payload_hash FROM jobs"
    " WHERE tenant_id = :tenant_id AND idempotency_key = :idempotency_key"
)


def insert(connection: Connection, job: NewJob, window: int) -> Accepted:
    """Store one job; at most `window` unclaimed announcements stand in a queue.

    A repeated (tenant, idempotency key) answers the job that holds it. Raises `IdempotencyConflict` where
    that job was made from another payload.
    """
    row = connection.execute(_INSERT, {**_values(job), "window": window}).one_or_none()
    if row is not None:
        return Accepted(job_of(row), created=True, announce=row.announce)
    held = None
    if job.idempotency_key is not None and job.payload_hash is not None:
        held = repeated(connection, job.tenant_id, job.idempotency_key, job.payload_hash)
    if held is None:
        raise RuntimeError(f"job {job.id} was neither stored nor is it a repeat")
    return Accepted(held, created=False, announce=False)


def repeated(
    connection: Connection, tenant_id: uuid.UUID, idempotency_key: str, payload_hash: bytes
) -> Job | None:
    """The tenant's job that was made under this key, or None.

    Raises `IdempotencyConflict` where it was made from another payload.
    """
    held = connection.execute(
        _BY_KEY, {"tenant_id": tenant_id, "idempotency_key": idempotency_key}
    ).one_or_none()
    if held is None:
        return None
    if held.payload_hash != payload_hash:
        raise IdempotencyConflict(held.id)
    return job_of(held)


def insert_many(connection: Connection, jobs: Sequence[NewJob]) -> None:
    """Store many jobs by COPY, all or none; the feeder announces them. Their idempotency keys must be new."""
    started_at = connection.execute(text("SELECT now()")).scalar_one()
    raw: Any = connection.connection.driver_connection
    columns = ", ".join([*_COLUMNS, "ready_at", "due_at"])
    with raw.cursor() as cursor, cursor.copy(f"COPY jobs ({columns}) FROM STDIN") as copy:
        for job in jobs:
            values = _values(job)
            due_at = job.not_before if job.not_before and job.not_before > started_at else None
            copy.write_row([*(values[name] for name in _COLUMNS), due_at or started_at, due_at])


def _values(job: NewJob) -> dict[str, Any]:
    webhook = job.webhook
    return {
        "id": job.id,
        "tenant_id": job.tenant_id,
        "kind": job.kind.value,
        "model": job.model,
        "lane": job.lane,
        "priority": job.priority,
        "queue": job.queue,
        "request": json.dumps(job.request, ensure_ascii=False),
        "prompt_tokens": job.prompt_tokens,
        "prefix": job.prefix,
        "metadata": None if job.metadata is None else json.dumps(dict(job.metadata), ensure_ascii=False),
        "webhook_url": webhook.url if webhook else None,
        "webhook_events": list(webhook.events) if webhook else None,
        "webhook_secret": webhook.secret if webhook else None,
        "idempotency_key": job.idempotency_key,
        "payload_hash": job.payload_hash,
        "deadline": job.deadline,
        "not_before": job.not_before,
        "max_attempts": job.max_attempts,
        "surface": job.surface.value,
    }
