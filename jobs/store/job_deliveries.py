"""Deliveries as they are shown, each with its attempts; sending one of a job again."""

import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, text


def of_job(connection: Connection, job_id: uuid.UUID) -> list[dict[str, Any]]:
    """The deliveries of a job with their attempts, oldest first."""
    return shown(connection, "job_id = :job_id ORDER BY id", {"job_id": job_id})


def shown(connection: Connection, which: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The deliveries that a condition in SQL finds, in its order, with their attempts."""
    # The log first: so a delivery is never older than the attempts that are shown with it.
    log: dict[uuid.UUID, list[dict[str, Any]]] = {}
    attempts = connection.execute(
        text(
            "SELECT delivery_id, attempt, started_at, duration_ms, status_code, error FROM webhook_attempts"
            f" WHERE delivery_id IN (SELECT id FROM webhook_deliveries WHERE {which})"
            " ORDER BY delivery_id, attempt"
        ),
        values,
    )
    for row in attempts:
        attempt = dict(row._mapping)
        log.setdefault(attempt.pop("delivery_id"), []).append(attempt)
    deliveries = connection.execute(
        text(
            "SELECT id, job_id, batch_id, event, url, status, attempts, next_attempt_at, delivered_at,"
            f" created_at FROM webhook_deliveries WHERE {which}"
        ),
        values,
    )
    return [dict(row._mapping) | {"attempt_log": log.get(row.id, [])} for row in deliveries]


def redeliver(connection: Connection, job_id: uuid.UUID, delivery_id: uuid.UUID) -> bool:
    """Make a delivery due now with a fresh schedule and enable its receiver again; False if not found."""
    row = connection.execute(
        text(
            "UPDATE webhook_deliveries SET status = 'pending', tries = 0, next_attempt_at = now(),"
            " delivered_at = NULL WHERE id = :id AND job_id = :job_id RETURNING tenant_id, url"
        ),
        {"id": delivery_id, "job_id": job_id},
    ).one_or_none()
    if row is None:
        return False
    connection.execute(
        text("DELETE FROM webhook_disabled WHERE tenant_id = :tenant_id AND url = :url"), dict(row._mapping)
    )
    return True
