"""What the feeder announces next: bounded by a window, fair to tenants, nearest deadline first."""

import uuid
from dataclasses import dataclass

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Picked:
    """A job to announce; `prefix` is the hash of its prompt's beginning."""

    id: uuid.UUID
    prefix: int


_READY = "status = 'queued' AND announced_at IS NULL AND due_at IS NULL"

_QUEUES = text(
    f"""
    WITH RECURSIVE found AS (
        (SELECT queue FROM jobs WHERE {_READY} ORDER BY queue LIMIT 1)
        UNION ALL
        SELECT (SELECT queue FROM jobs WHERE {_READY} AND queue > found.queue ORDER BY queue LIMIT 1)
        FROM found WHERE found.queue IS NOT NULL
    ) SELECT queue FROM found WHERE queue IS NOT NULL
    """
)


def ready_queues(connection: Connection) -> list[str]:
    """The queues with jobs that wait to be announced."""
    return [row.queue for row in connection.execute(_QUEUES)]


def standing(connection: Connection, queue: str, window: int) -> int:
    """Unclaimed announcements in a queue, counted to `window` at most."""
    counted: int = connection.execute(
        text(
            "SELECT count(*) FROM (SELECT 1 FROM jobs WHERE queue = :queue AND status = 'queued'"
            " AND announced_at IS NOT NULL LIMIT :window) AS standing"
        ),
        {"queue": queue, "window": window},
    ).scalar_one()
    return counted


# Tenants are found by skipping through the index; each gives its nearest deadlines, and the turns go round.
_PICK = text(
    f"""
    WITH RECURSIVE found AS (
        (SELECT tenant_id FROM jobs WHERE queue = :queue AND {_READY} ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT tenant_id FROM jobs WHERE queue = :queue AND {_READY} AND tenant_id > found.tenant_id
                ORDER BY tenant_id LIMIT 1)
        FROM found WHERE found.tenant_id IS NOT NULL
    ), turns AS (
        SELECT nearest.id, nearest.deadline,
               row_number() OVER (PARTITION BY found.tenant_id ORDER BY nearest.deadline, nearest.id) AS turn
        FROM found CROSS JOIN LATERAL (
            SELECT id, deadline FROM jobs
            WHERE queue = :queue AND {_READY} AND tenant_id = found.tenant_id
            ORDER BY deadline, id LIMIT :n
        ) AS nearest
        WHERE found.tenant_id IS NOT NULL
    ), picked AS (
        SELECT id, row_number() OVER (ORDER BY turn, deadline, id) AS place
        FROM turns ORDER BY turn, deadline, id LIMIT :n
    ), held AS (
        SELECT id FROM jobs WHERE id = ANY(ARRAY(SELECT id FROM picked)) AND {_READY}
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ), announced AS (
        UPDATE jobs j SET announced_at = clock_timestamp(), announcements = j.announcements + 1
        FROM held WHERE j.id = held.id RETURNING j.id, j.prefix
    )
    SELECT announced.id, announced.prefix FROM announced JOIN picked USING (id) ORDER BY picked.place
    """
)


def pick(connection: Connection, queue: str, n: int) -> list[Picked]:
    """Mark up to `n` ready jobs of a queue as announced, in the order in which they should be."""
    return [Picked(row.id, row.prefix) for row in connection.execute(_PICK, {"queue": queue, "n": n})]
