"""The moves that a tenant asks for: cancel and redrive, each one compare-and-set."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, text

from jobs.domain.jobs import MOVES, Move, Status
from jobs.store import deliveries


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that was made: where the job came from, its attempt and its queue."""

    source: Status
    attempt: int
    queue: str


_CANCEL = text(
    f"""
    WITH held AS (
        SELECT id, status AS source FROM jobs
        WHERE id = :id AND tenant_id = :tenant_id AND status = ANY(:sources) FOR NO KEY UPDATE
    )
    UPDATE jobs j
    SET status = 'cancelled', finished_at = now(), lease_until = NULL, error_code = NULL, error_message = NULL
    FROM held WHERE j.id = held.id RETURNING {deliveries.EVENT_COLUMNS}, j.queue, held.source
    """
)


def cancel(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Moved | None:
    """Cancel a queued or running job with its deliveries; None if it is in another state or not there."""
    row = connection.execute(
        _CANCEL,
        {"id": job_id, "tenant_id": tenant_id, "sources": [str(s) for s in MOVES[Move.CANCEL].sources]},
    ).one_or_none()
    if row is None:
        return None
    deliveries.write(connection, [row])
    return Moved(Status(row.source), row.attempt, row.queue)


_REDRIVE = text(
    """
    UPDATE jobs
    SET status = 'queued', failures = 0, redrives = redrives + 1, ready_at = now(), due_at = NULL,
        deadline = now() + (deadline - coalesce(redriven_at, created_at)), redriven_at = now(),
        finished_at = NULL, error_code = NULL, error_message = NULL, announced_at = NULL, announcements = 0
    WHERE id = :id AND tenant_id = :tenant_id AND status = ANY(:sources) AND request <> '{}'
    RETURNING attempt, queue
    """
)


def redrive(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Moved | None:
    """Queue a failed job again with a new budget and as much time as it had; None if it has not failed.

    One whose request was deleted stays as it is. The feeder announces it.
    """
    row = connection.execute(
        _REDRIVE,
        {"id": job_id, "tenant_id": tenant_id, "sources": [str(s) for s in MOVES[Move.REDRIVE].sources]},
    ).one_or_none()
    return Moved(Status.FAILED, row.attempt, row.queue) if row else None
