"""What was sent to a webhook endpoint and how it went; sending it again; forgetting what is old."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from jobs.domain.jobs import least_id
from jobs.store.endpoints import Endpoint
from jobs.store.job_deliveries import shown
from jobs.targets import receiver_of


def listing(
    connection: Connection,
    endpoint_id: uuid.UUID,
    limit: int,
    *,
    after: uuid.UUID | None = None,
    status: str | None = None,
) -> list[dict[str, Any]]:
    """Deliveries to an endpoint with their attempts, newest first, from behind the id `after`."""
    return shown(
        connection,
        """
        endpoint_id = :endpoint_id AND (CAST(:after AS uuid) IS NULL OR id < :after)
        AND (CAST(:status AS text) IS NULL OR status = :status) ORDER BY id DESC LIMIT :limit
        """,
        {"endpoint_id": endpoint_id, "limit": limit, "after": after, "status": status},
    )


def one(connection: Connection, endpoint_id: uuid.UUID, delivery_id: uuid.UUID) -> dict[str, Any] | None:
    """A delivery to an endpoint with its attempts, or None."""
    found = shown(
        connection, "endpoint_id = :endpoint_id AND id = :id", {"endpoint_id": endpoint_id, "id": delivery_id}
    )
    return found[0] if found else None


# To the address that the endpoint has now.
_AGAIN = """
    WITH held AS (
        SELECT id FROM webhook_deliveries WHERE endpoint_id = :endpoint_id AND %s
        ORDER BY id LIMIT :n FOR NO KEY UPDATE
    )
    UPDATE webhook_deliveries d
    SET status = 'pending', tries = 0, next_attempt_at = now(), delivered_at = NULL, url = :url, host = :host
    FROM held WHERE d.id = held.id RETURNING d.id
"""


def redeliver(connection: Connection, endpoint: Endpoint, delivery_id: uuid.UUID) -> bool:
    """Make a delivery due now with a fresh schedule; False if the endpoint has none of that id."""
    return bool(_again(connection, endpoint, "id = :id", 1, {"id": delivery_id}))


def redeliver_since(
    connection: Connection,
    endpoint: Endpoint,
    since: datetime,
    *,
    status: str | None = None,
    after: uuid.UUID | None = None,
    n: int = 5_000,
) -> list[uuid.UUID]:
    """As `redeliver`, up to `n` of the events from `since` on behind the id `after`, but no tests.

    `status` restricts it to those that were `delivered`, or have `failed`. Returns which these are, in order.
    """
    return sorted(
        _again(
            connection,
            endpoint,
            """
            id >= :first AND (CAST(:after AS uuid) IS NULL OR id > :after)
            AND (CAST(:status AS text) IS NULL OR status = :status)
            AND (job_id IS NOT NULL OR batch_id IS NOT NULL)
            """,
            n,
            {"first": least_id(since), "after": after, "status": status},
        )
    )


def _again(
    connection: Connection, endpoint: Endpoint, which: str, n: int, values: dict[str, Any]
) -> Sequence[uuid.UUID]:
    given = {"endpoint_id": endpoint.id, "url": endpoint.url, "host": receiver_of(endpoint.url), "n": n}
    return connection.execute(text(_AGAIN % which), values | given).scalars().all()


def forget(connection: Connection, age_s: float, n: int = 1_000) -> int:
    """Delete up to `n` deliveries to endpoints that are older than that and not to be sent any more.

    Those of responses go with their jobs before.
    """
    return connection.execute(
        text(
            """
            WITH old AS (
                SELECT d.id FROM webhook_endpoints e CROSS JOIN LATERAL (
                    SELECT id FROM webhook_deliveries
                    WHERE endpoint_id = e.id AND status <> 'pending'
                    AND created_at < now() - make_interval(secs => :age_s)
                    ORDER BY id LIMIT :n
                ) AS d LIMIT :n
            )
            DELETE FROM webhook_deliveries WHERE id = ANY(ARRAY(SELECT id FROM old))
            """
        ),
        {"age_s": age_s, "n": n},
    ).rowcount
