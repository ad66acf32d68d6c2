"""Claims and their leases: the attempt number is the fence, the database's clock the only judge."""

import uuid
from collections.abc import Sequence

from sqlalchemy import Connection, text

from jobs.domain.jobs import Claim
from jobs.store import deliveries, rows

# Rows are locked in id order here and in every statement over several jobs, so that none deadlocks.
_CLAIM = text(
    f"""
    WITH ready AS (
        SELECT id FROM jobs
        WHERE id = ANY(CAST(:ids AS uuid[])) AND status = 'queued' AND deadline > now()
        AND (due_at IS NULL OR due_at <= now())
        ORDER BY id FOR NO KEY UPDATE
    )
    UPDATE jobs j
    SET status = 'running', attempt = j.attempt + 1, worker = :worker, claimed_at = now(), due_at = NULL,
        lease_until = now() + make_interval(secs => :lease_s)
    FROM ready WHERE j.id = ready.id
    RETURNING {deliveries.EVENT_COLUMNS}, j.request, j.prompt_tokens, j.prefix,
        j.failures, j.max_attempts,
        extract(epoch FROM now() - j.ready_at)::float8 * 1000 AS queue_ms,
        extract(epoch FROM now() - {rows.ASKED_AT})::float8 * 1000 AS age_ms,
        extract(epoch FROM j.deadline - now())::float8 AS deadline_in_s
    """
)


def claim(connection: Connection, ids: Sequence[uuid.UUID], worker: str, lease_s: float) -> list[Claim]:
    """Take those of `ids` that may run now, each as a new attempt under a lease of `lease_s` seconds.

    An id that is missing from the answer is somebody else's, ended, not yet due or past its deadline.
    Deliveries of `job.started` are written in the same transaction.
    """
    taken = connection.execute(_CLAIM, {"ids": list(ids), "worker": worker, "lease_s": lease_s}).all()
    deliveries.write(connection, taken)
    return [Claim(**{name: getattr(row, name) for name in Claim.__dataclass_fields__}) for row in taken]


_RENEW = text(
    """
    WITH held AS (
        SELECT j.id FROM jobs j
        JOIN unnest(CAST(:ids AS uuid[]), CAST(:attempts AS int[])) AS given (id, attempt)
        ON given.id = j.id AND given.attempt = j.attempt
        WHERE j.id = ANY(CAST(:ids AS uuid[])) AND j.status = 'running'
        ORDER BY j.id FOR NO KEY UPDATE OF j
    )
    UPDATE jobs j SET lease_until = now() + make_interval(secs => :lease_s)
    FROM held WHERE j.id = held.id RETURNING j.id, j.attempt
    """
)


def renew(
    connection: Connection, held: Sequence[tuple[uuid.UUID, int]], lease_s: float
) -> frozenset[tuple[uuid.UUID, int]]:
    """Extend the leases of the (id, attempt) pairs; those in the answer are still held, the others lost."""
    ids, attempts = [job_id for job_id, _ in held], [attempt for _, attempt in held]
    kept = connection.execute(_RENEW, {"ids": ids, "attempts": attempts, "lease_s": lease_s})
    return frozenset((row.id, row.attempt) for row in kept)
