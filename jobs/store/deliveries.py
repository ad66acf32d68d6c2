"""Webhook deliveries as rows: written with the event that they tell of, leased, retried, logged."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from jobs.domain import clock
from jobs.domain.events import EVENT_OF_STATUS
from jobs.domain.jobs import Status, new_id
from jobs.store import endpoint_events
from jobs.targets import receiver_of

# What a statement must RETURN for `write` to tell of it.
EVENT_COLUMNS = (
    "j.id, j.tenant_id, j.kind, j.model, j.lane, j.priority, j.status, j.attempt, j.redrives, j.metadata,"
    " j.webhook_url, j.webhook_events, j.webhook_secret, j.created_at, j.finished_at, j.error_code,"
    " j.error_message, j.surface"
)

# A started event is told once however many attempts there are: the unique key holds the second back.
_INSERT = text(
    """
    INSERT INTO webhook_deliveries (id, job_id, tenant_id, event, generation, url, host, secret, payload)
    VALUES (:id, :job_id, :tenant_id, :event, :generation, :url, :host, :secret, :payload)
    ON CONFLICT (job_id, batch_id, endpoint_id, event, generation) DO NOTHING
    """
)


def write(
    connection: Connection, rows: Sequence[Any], results: Mapping[uuid.UUID, Mapping[str, Any]] | None = None
) -> int:
    """Write the deliveries that the jobs' own webhooks and the tenant's endpoints ask for.

    `rows` have `EVENT_COLUMNS`, and each tells of the status it shows. `results` holds the answers of
    succeeded jobs. Returns how many deliveries were asked for.
    """
    answers = results or {}
    deliveries = [
        _delivery(row, answers.get(row.id))
        for row in rows
        if row.webhook_url and EVENT_OF_STATUS.get(Status(row.status)) in (row.webhook_events or ())
    ]
    if deliveries:
        connection.execute(_INSERT, deliveries)
    return len(deliveries) + endpoint_events.responses_ended(connection, rows, answers)


def _delivery(row: Any, result: Mapping[str, Any] | None) -> dict[str, Any]:
    delivery_id, event = new_id(), EVENT_OF_STATUS[Status(row.status)].value
    at = clock.now()
    error = {"code": row.error_code, "message": row.error_message} if row.error_code else None
    payload = {
        "id": str(delivery_id),
        "object": "event",
        "type": event,
        "created_at": int(at.timestamp()),
        "timestamp": at.isoformat(),
        "data": {
            "id": str(row.id),
            "object": "job",
            "kind": row.kind,
            "model": row.model,
            "lane": row.lane,
            "priority": row.priority,
            "status": row.status,
            "attempt": row.attempt,
            "metadata": row.metadata,
            "created_at": row.created_at.isoformat(),
            "finished_at": row.finished_at.isoformat() if row.finished_at else None,
            "error": error,
            "result": result,
        },
    }
    return {
        "id": delivery_id,
        "job_id": row.id,
        "tenant_id": row.tenant_id,
        "event": event,
        "generation": row.redrives,
        "url": row.webhook_url,
        "host": receiver_of(row.webhook_url),
        "secret": row.webhook_secret,
        "payload": json.dumps(payload, ensure_ascii=False, separators=(",", ":")),
    }


@dataclass(frozen=True, slots=True)
class DueDelivery:
    """One delivery under its lease, with the encrypted secrets that sign it now.

    `secret` is the endpoint's, else the callback's own, else the tenant's; `old_secret` signs too, for a day
    after a rotation. `attempts` counts all of them and numbers this one; `tries` counts since it was last
    (re)started. A `sample` is the test of an endpoint.
    """

    id: uuid.UUID
    tenant_id: uuid.UUID
    endpoint_id: uuid.UUID | None
    url: str
    host: str
    payload: str
    secret: str | None
    old_secret: str | None
    attempts: int
    tries: int
    sample: bool
    disabled: bool


# The lease doubles as the fence: an attempt is recorded only while its own number stands. Receivers are
# found by skipping through the index, so that the backlog of one that hangs is never read.
_TAKE = text(
    """
    WITH RECURSIVE found AS (
        (SELECT host FROM webhook_deliveries WHERE status = 'pending' ORDER BY host LIMIT 1)
        UNION ALL
        SELECT (SELECT host FROM webhook_deliveries WHERE status = 'pending' AND host > found.host
                ORDER BY host LIMIT 1)
        FROM found WHERE found.host IS NOT NULL
    ), due AS (
        SELECT nearest.id
        FROM found
        LEFT JOIN unnest(CAST(:hosts AS text[]), CAST(:places AS int[])) AS b (host, places)
            ON b.host = found.host
        CROSS JOIN LATERAL (
            SELECT id, next_attempt_at FROM webhook_deliveries
            WHERE status = 'pending' AND host = found.host AND next_attempt_at <= now()
            ORDER BY next_attempt_at LIMIT greatest(coalesce(b.places, :per_host), 0)
        ) AS nearest
        ORDER BY nearest.next_attempt_at LIMIT :scan
    ), taken AS (
        SELECT d.id, d.endpoint_id,
               d.endpoint_id IS NOT NULL AND d.job_id IS NULL AND d.batch_id IS NULL AS sample
        FROM webhook_deliveries d
        WHERE d.id = ANY(ARRAY(SELECT id FROM due))
        AND d.status = 'pending' AND d.next_attempt_at <= now()
        ORDER BY d.id LIMIT :n FOR UPDATE SKIP LOCKED
    )
    UPDATE webhook_deliveries d
    SET attempts = d.attempts + 1, tries = d.tries + 1,
        next_attempt_at = now() + make_interval(secs => :lease_s)
    FROM taken LEFT JOIN webhook_endpoints e ON e.id = taken.endpoint_id, tenants t
    WHERE d.id = taken.id AND t.id = d.tenant_id
    RETURNING d.id, d.tenant_id, d.endpoint_id, d.url, d.host, d.payload,
              coalesce(e.secret, d.secret, t.signing_secret) AS secret,
              CASE WHEN e.old_secret_until > now() THEN e.old_secret END AS old_secret,
              d.attempts, d.tries, taken.sample,
              CASE WHEN taken.endpoint_id IS NOT NULL THEN e.disabled_at IS NOT NULL AND NOT taken.sample
              ELSE EXISTS (SELECT FROM webhook_disabled x WHERE x.tenant_id = d.tenant_id AND x.url = d.url)
              END AS disabled
    """
)


def take_due(
    connection: Connection, n: int, lease_s: float, per_host: int, places: Mapping[str, int] | None = None
) -> list[DueDelivery]:
    """Lease up to `n` due deliveries for `lease_s` seconds, `per_host` of one receiver at most.

    `places` says how many a receiver may take instead, such as one that is being served already. A lease
    that runs out makes the row due again, as a new attempt.
    """
    bounds = places or {}
    values = {"hosts": list(bounds), "places": list(bounds.values()), "scan": n * 8}
    rows = connection.execute(_TAKE, {**values, "n": n, "lease_s": lease_s, "per_host": per_host})
    return [DueDelivery(**row._mapping) for row in rows]


@dataclass(frozen=True, slots=True)
class DeliveryFigures:
    """The webhooks now: how late the latest due one is, how many wait for another try, and how many
    endpoints are disabled."""

    oldest_due_s: float = 0.0
    retrying: int = 0
    disabled_endpoints: int = 0


def figures(connection: Connection, count_to: int = 10_000) -> DeliveryFigures:
    """The figures; what waits for another try is counted to `count_to` at most."""
    # What is due in the future was tried before, so of a backlog that was not, however long, nothing is read.
    row = connection.execute(
        text(
            """
            SELECT coalesce(greatest(extract(epoch FROM now() - (
                       SELECT min(next_attempt_at) FROM webhook_deliveries WHERE status = 'pending'
                   )), 0), 0)::float8 AS late_s,
                   (SELECT count(*) FROM (
                       SELECT 1 FROM webhook_deliveries
                       WHERE status = 'pending' AND next_attempt_at > now() AND tries > 0 LIMIT :count_to
                   ) AS retried) AS retrying,
                   (SELECT count(*) FROM webhook_endpoints WHERE disabled_at IS NOT NULL) AS disabled
            """
        ),
        {"count_to": count_to},
    ).one()
    return DeliveryFigures(row.late_s, row.retrying, row.disabled)


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """How one attempt at a delivery ended; `retry_in_s` None ends the delivery."""

    delivery_id: uuid.UUID
    attempt: int
    started_at: datetime
    duration_ms: float
    status_code: int | None
    error: str | None
    delivered: bool
    retry_in_s: float | None = None


_LOG = text(
    """
    INSERT INTO webhook_attempts (delivery_id, attempt, started_at, duration_ms, status_code, error)
    SELECT id, :attempt, :started_at, :duration_ms, :status_code, :error
    FROM webhook_deliveries WHERE id = :delivery_id
    ON CONFLICT DO NOTHING
    """
)

_SETTLE = text(
    """
    UPDATE webhook_deliveries
    SET status = :status,
        next_attempt_at = now() + make_interval(secs => :retry_in_s),
        delivered_at = CASE WHEN :status = 'delivered' THEN now() END
    WHERE id = :delivery_id AND attempts = :attempt AND status = 'pending'
    """
)


def settle(connection: Connection, result: AttemptResult) -> None:
    """Log the attempt and move its delivery on, unless a later attempt owns it or retention took it."""
    values = {name: getattr(result, name) for name in AttemptResult.__dataclass_fields__}
    connection.execute(_LOG, values)
    ends = result.delivered or result.retry_in_s is None
    status = "delivered" if result.delivered else "failed" if ends else "pending"
    connection.execute(
        _SETTLE, {**values, "status": status, "retry_in_s": None if ends else result.retry_in_s}
    )


def disable(connection: Connection, tenant_id: uuid.UUID, url: str, reason: str) -> None:
    """Mark an address as gone for this tenant: what falls due for it is taken as `disabled`."""
    connection.execute(
        text(
            "INSERT INTO webhook_disabled (tenant_id, url, reason) VALUES (:tenant_id, :url, :reason)"
            " ON CONFLICT DO NOTHING"
        ),
        {"tenant_id": tenant_id, "url": url, "reason": reason},
    )
