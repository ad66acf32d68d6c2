"""What the sweeper finds: lost leases, due jobs, passed deadlines, lost announcements, old rows."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from jobs.domain.jobs import Status
from jobs.domain.latency import LatencyRecord
from jobs.store import deliveries, records, rows

# Nothing here waits for a lock: a row that somebody holds is left for the next round.


@dataclass(frozen=True, slots=True)
class Swept:
    """A job that the sweeper moved, with its status now."""

    job_id: uuid.UUID
    attempt: int
    status: Status


_LOST = text(
    f"""
    WITH lost AS (
        SELECT id, worker, lane, claimed_at FROM jobs
        WHERE status = 'running' AND lease_until < now()
        ORDER BY lease_until LIMIT :n FOR NO KEY UPDATE SKIP LOCKED
    ), judged AS (
        SELECT lost.*, CASE
            WHEN j.deadline <= now() THEN 'expired'
            WHEN j.failures + 1 >= j.max_attempts THEN 'failed'
            ELSE 'queued' END AS verdict
        FROM lost JOIN jobs j USING (id)
    )
    UPDATE jobs j
    SET status = verdict, failures = failures + 1, lease_until = NULL,
        ready_at = CASE WHEN verdict = 'queued' THEN now() ELSE j.ready_at END,
        announced_at = NULL, announcements = 0,
        finished_at = CASE WHEN verdict <> 'queued' THEN now() END,
        error_code = CASE WHEN verdict = 'expired' THEN 'deadline_exceeded' ELSE 'lease_lost' END,
        error_message = CASE WHEN verdict = 'expired' THEN 'the deadline passed while the job ran'
            ELSE 'the worker stopped answering and its lease ran out' END
    FROM judged WHERE j.id = judged.id
    RETURNING {deliveries.EVENT_COLUMNS}, judged.worker,
        extract(epoch FROM now() - {rows.ASKED_AT})::float8 * 1000 AS total_ms,
        j.prompt_tokens
    """
)


def lose_leases(connection: Connection, n: int = 500) -> list[Swept]:
    """Take running jobs from workers that stopped renewing, and write those attempts' latency records."""
    lost = connection.execute(_LOST, {"n": n}).all()
    records.write_latency(
        connection,
        [
            (
                row.id,
                row.attempt,
                LatencyRecord(
                    "lease_lost",
                    row.lane,
                    worker=row.worker,
                    total_ms=row.total_ms,
                    prompt_tokens=row.prompt_tokens,
                ),
            )
            for row in lost
        ],
    )
    deliveries.write(connection, [row for row in lost if row.status != Status.QUEUED])
    return [Swept(row.id, row.attempt, Status(row.status)) for row in lost]


_EXPIRE = text(
    f"""
    WITH late AS (
        SELECT id FROM jobs WHERE status = 'queued' AND deadline <= now()
        ORDER BY deadline LIMIT :n FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs j
    SET status = 'expired', finished_at = now(), error_code = 'deadline_exceeded',
        error_message = 'the deadline passed before the job was done'
    FROM late WHERE j.id = late.id RETURNING {deliveries.EVENT_COLUMNS}
    """
)


def expire(connection: Connection, n: int = 500) -> list[Swept]:
    """Expire queued jobs whose deadline has passed, with their deliveries."""
    late = connection.execute(_EXPIRE, {"n": n}).all()
    deliveries.write(connection, late)
    return [Swept(row.id, row.attempt, Status(row.status)) for row in late]


_DUE = text(
    """
    WITH due AS (
        SELECT id FROM jobs WHERE status = 'queued' AND due_at <= now()
        ORDER BY due_at LIMIT :n FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs j SET due_at = NULL, announced_at = NULL FROM due WHERE j.id = due.id
    """
)


def release_due(connection: Connection, n: int = 2_000) -> int:
    """Make jobs whose `not_before` or next try has come ready for the feeder; returns how many."""
    return connection.execute(_DUE, {"n": n}).rowcount


_WATERMARK = text(
    """
    SELECT max(announced_at) AS announced_at FROM (
        SELECT announced_at FROM jobs WHERE queue = :queue AND claimed_at > now() - make_interval(secs => 60)
        ORDER BY claimed_at DESC LIMIT 100
    ) AS recent
    """
)


def watermark(connection: Connection, queue: str) -> datetime | None:
    """The latest announcement in this queue that was claimed within the last minute; None if none was."""
    found: datetime | None = connection.execute(_WATERMARK, {"queue": queue}).scalar_one()
    return found


# An announcement is given up for lost only after a wait that doubles with each one made for the job.
_LOST_ANNOUNCEMENTS = text(
    """
    WITH lost AS (
        SELECT id FROM jobs
        WHERE queue = :queue AND status = 'queued' AND announced_at IS NOT NULL
        AND (CAST(:before AS timestamptz) IS NULL OR announced_at < :before)
        AND announced_at < now() - make_interval(secs => least(:backoff_s * 2.0 ^ (announcements - 1), 600))
        ORDER BY announced_at LIMIT :n FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs j SET announced_at = NULL FROM lost WHERE j.id = lost.id
    """
)


def lose_announcements(
    connection: Connection, queue: str, before: datetime | None, backoff_s: float, n: int = 1_000
) -> int:
    """Let the feeder announce again what was announced before `before` (None: ever) and waits on."""
    values = {"queue": queue, "before": before, "backoff_s": backoff_s, "n": n}
    return connection.execute(_LOST_ANNOUNCEMENTS, values).rowcount


def announced_queues(connection: Connection) -> list[str]:
    """The queues that hold announced, unclaimed jobs."""
    found = connection.execute(
        text(
            """
            WITH RECURSIVE found AS (
                (SELECT queue FROM jobs WHERE status = 'queued' AND announced_at IS NOT NULL
                 ORDER BY queue LIMIT 1)
                UNION ALL
                SELECT (SELECT queue FROM jobs WHERE status = 'queued' AND announced_at IS NOT NULL
                        AND queue > found.queue ORDER BY queue LIMIT 1)
                FROM found WHERE found.queue IS NOT NULL
            ) SELECT queue FROM found WHERE queue IS NOT NULL
            """
        )
    )
    return [row.queue for row in found]


_FORGET = text(
    """
    WITH old AS (
        SELECT id FROM jobs WHERE finished_at < now() - make_interval(secs => :age_s)
        AND NOT EXISTS (SELECT 1 FROM webhook_deliveries d WHERE d.job_id = jobs.id AND d.status = 'pending')
        AND NOT (surface = 'batch' AND EXISTS (
            SELECT 1 FROM batch_items i JOIN batches b ON b.id = i.batch_id WHERE i.job_id = jobs.id
            AND b.status IN ('validating', 'in_progress', 'finalizing', 'cancelling')))
        ORDER BY finished_at LIMIT :n FOR UPDATE SKIP LOCKED
    )
    DELETE FROM jobs WHERE id = ANY(ARRAY(SELECT id FROM old))
    """
)


def forget(connection: Connection, age_s: float, n: int = 1_000) -> int:
    """Delete up to `n` jobs that ended more than `age_s` ago, with all that hangs on them.

    What a batch still has to write into its files stays.
    """
    return connection.execute(_FORGET, {"age_s": age_s, "n": n}).rowcount


def mark_unannounced(connection: Connection, ids: Sequence[uuid.UUID]) -> None:
    """Give jobs back to the feeder whose message could not be sent."""
    connection.execute(
        text(
            """
            WITH held AS (
                SELECT id FROM jobs WHERE id = ANY(CAST(:ids AS uuid[])) AND status = 'queued'
                ORDER BY id FOR NO KEY UPDATE
            )
            UPDATE jobs j SET announced_at = NULL FROM held WHERE j.id = held.id
            """
        ),
        {"ids": list(ids)},
    )
