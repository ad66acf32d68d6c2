"""Deliveries to a tenant's webhook endpoints, written in the transaction of the event that they tell of."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from jobs.domain import clock, openai_ids
from jobs.domain.events import EndpointEvent, response_event
from jobs.domain.jobs import Status, Surface, new_id
from jobs.domain.openai_ids import Prefix
from jobs.targets import receiver_of


@dataclass(frozen=True, slots=True)
class _Told:
    """One event, of a response's job or of a batch."""

    tenant_id: uuid.UUID
    event: EndpointEvent
    at: datetime
    job_id: uuid.UUID | None = None
    batch_id: uuid.UUID | None = None
    generation: int = 0


# The key's lock, which the insert takes anyway: an endpoint that is being deleted is passed over, and fails
# no transaction that records results.
_RECEIVERS = text(
    """
    SELECT given.place, e.id, e.url
    FROM unnest(CAST(:place AS int[]), CAST(:tenant_id AS uuid[]), CAST(:event AS text[]),
                CAST(:job_id AS uuid[])) AS given (place, tenant_id, event, job_id)
    JOIN webhook_endpoints e ON e.tenant_id = given.tenant_id AND given.event = ANY(e.event_types)
        AND e.disabled_at IS NULL
    WHERE given.job_id IS NULL
    OR EXISTS (SELECT FROM responses r WHERE r.job_id = given.job_id AND r.background)
    ORDER BY e.id FOR KEY SHARE OF e SKIP LOCKED
    """
)

_INSERT = text(
    """
    INSERT INTO webhook_deliveries
        (id, job_id, batch_id, endpoint_id, tenant_id, event, generation, url, host, payload)
    VALUES (:id, :job_id, :batch_id, :endpoint_id, :tenant_id, :event, :generation, :url, :host, :payload)
    ON CONFLICT (job_id, batch_id, endpoint_id, event, generation) DO NOTHING
    """
)


def responses_ended(
    connection: Connection, rows: Sequence[Any], results: Mapping[uuid.UUID, Mapping[str, Any]]
) -> int:
    """Tell of the responses among these rows of jobs that have ended; returns how many deliveries that are.

    As OpenAI does, only background responses are told of. Where none is among the rows, nothing is asked.
    """
    return _write(
        connection,
        [
            _Told(row.tenant_id, event, row.finished_at, job_id=row.id, generation=row.redrives)
            for row in rows
            if row.surface == Surface.RESPONSE
            and (event := response_event(Status(row.status), results.get(row.id, {}).get("finish_reason")))
        ],
    )


def batch_ended(
    connection: Connection, batch_id: uuid.UUID, tenant_id: uuid.UUID, event: EndpointEvent
) -> int:
    """Tell of a batch that has ended; returns how many deliveries that are."""
    return _write(connection, [_Told(tenant_id, event, clock.now(), batch_id=batch_id)])


def sample(
    connection: Connection, tenant_id: uuid.UUID, endpoint_id: uuid.UUID, url: str, event: EndpointEvent
) -> uuid.UUID:
    """Have one event sent that tells of nothing, and is tried once; returns the delivery's id.

    The caller holds the endpoint's lock, so that samples are numbered one after another.
    """
    delivery = _delivery(_Told(tenant_id, event, clock.now()), endpoint_id, url)
    generation: int = connection.execute(
        text(
            "SELECT coalesce(max(generation) + 1, 0) FROM webhook_deliveries WHERE endpoint_id = :endpoint_id"
            " AND event = :event AND job_id IS NULL AND batch_id IS NULL"
        ),
        delivery,
    ).scalar_one()
    connection.execute(_INSERT, delivery | {"generation": generation})
    delivery_id: uuid.UUID = delivery["id"]
    return delivery_id


def _write(connection: Connection, told: Sequence[_Told]) -> int:
    if not told:
        return 0
    values: dict[str, list[Any]] = {
        "place": list(range(len(told))),
        "tenant_id": [one.tenant_id for one in told],
        "event": [one.event.value for one in told],
        "job_id": [one.job_id for one in told],
    }
    receivers = connection.execute(_RECEIVERS, values).all()
    deliveries = [_delivery(told[row.place], row.id, row.url) for row in receivers]
    if deliveries:
        connection.execute(_INSERT, deliveries)
    return len(deliveries)


def _delivery(told: _Told, endpoint_id: uuid.UUID, url: str) -> dict[str, Any]:
    delivery_id = new_id()
    payload = {
        "id": openai_ids.shown(Prefix.WEBHOOK_EVENT, delivery_id),
        "object": "event",
        "type": told.event,
        "created_at": int(told.at.timestamp()),
        "data": {"id": openai_ids.shown(told.event.prefix, told.job_id or told.batch_id or delivery_id)},
    }
    return {
        "id": delivery_id,
        "job_id": told.job_id,
        "batch_id": told.batch_id,
        "endpoint_id": endpoint_id,
        "tenant_id": told.tenant_id,
        "event": told.event.value,
        "generation": told.generation,
        "url": url,
        "host": receiver_of(url),
        "payload": json.dumps(payload, separators=(",", ":")),
    }
