"""Batches of the OpenAI surface as their tenants ask for them: made, shown, listed, cancelled."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, text

from jobs.domain.jobs import new_id


class BatchStatus(StrEnum):
    """Where a batch stands, by OpenAI's names."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the batch has ended."""
        return self in (
            BatchStatus.FAILED,
            BatchStatus.COMPLETED,
            BatchStatus.EXPIRED,
            BatchStatus.CANCELLED,
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it stands now; while it is open, `completed` and `failed` are counted from its jobs."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    endpoint: str
    model: str | None
    completion_window: str
    input_file_id: uuid.UUID
    output_file_id: uuid.UUID | None
    error_file_id: uuid.UUID | None
    metadata: Mapping[str, str] | None
    output_expires_s: int | None
    status: BatchStatus
    errors: Mapping[str, Any] | None
    total: int
    completed: int
    failed: int
    usage: Mapping[str, int] | None
    payload_hash: bytes | None  # what its idempotency key is bound to
    created_at: datetime
    expires_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None
    seen_at: datetime  # by the database's clock, as are the other times


_STORED = [name for name in Batch.__dataclass_fields__ if name not in ("completed", "failed", "seen_at")]
# Counted where the batch is open, and kept once it has ended.
_SELECT = f"""
    SELECT {", ".join(f"b.{name}" for name in _STORED)}, now() AS seen_at,
        coalesce(counted.completed, b.completed) AS completed, coalesce(counted.failed, b.failed) AS failed
    FROM (SELECT * FROM batches WHERE %s) AS b LEFT JOIN LATERAL (
        SELECT count(*) FILTER (WHERE j.status = 'succeeded') AS completed,
               count(*) FILTER (WHERE j.status IN ('failed', 'cancelled', 'expired')) AS failed
        FROM batch_items i JOIN jobs j ON j.id = i.job_id WHERE i.batch_id = b.id
    ) AS counted ON b.status IN ('in_progress', 'finalizing', 'cancelling')
"""


def create(
    connection: Connection,
    tenant_id: uuid.UUID,
    *,
    endpoint: str,
    completion_window: str,
    window_s: int,
    input_file_id: uuid.UUID,
    metadata: Mapping[str, str] | None,
    output_expires_s: int | None,
    idempotency_key: str | None = None,
    payload_hash: bytes | None = None,
) -> Batch | None:
    """A new batch, to be validated by the control process; None where another holds the key."""
    batch_id = new_id()
    connection.execute(
        text(
            """
            INSERT INTO batches (id, tenant_id, endpoint, completion_window, input_file_id, metadata,
                                 output_expires_s, idempotency_key, payload_hash, expires_at)
            VALUES (:id, :tenant_id, :endpoint, :completion_window, :input_file_id, CAST(:metadata AS jsonb),
                    :output_expires_s, :idempotency_key, :payload_hash,
                    now() + make_interval(secs => :window_s))
            ON CONFLICT (tenant_id, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
            """
        ),
        {
            "id": batch_id,
            "tenant_id": tenant_id,
            "endpoint": endpoint,
            "completion_window": completion_window,
            "input_file_id": input_file_id,
            "metadata": None if metadata is None else json.dumps(dict(metadata)),
            "output_expires_s": output_expires_s,
            "idempotency_key": idempotency_key,
            "payload_hash": payload_hash,
            "window_s": window_s,
        },
    )
    return get(connection, tenant_id, batch_id)


def get(connection: Connection, tenant_id: uuid.UUID, batch_id: uuid.UUID) -> Batch | None:
    """The tenant's batch, or None."""
    return _one(connection, "id = :id AND tenant_id = :tenant_id", {"id": batch_id, "tenant_id": tenant_id})


def of_key(connection: Connection, tenant_id: uuid.UUID, idempotency_key: str) -> Batch | None:
    """The tenant's batch that was made under this key, or None."""
    return _one(
        connection,
        "tenant_id = :tenant_id AND idempotency_key = :key",
        {"tenant_id": tenant_id, "key": idempotency_key},
    )


def listing(
    connection: Connection, tenant_id: uuid.UUID, limit: int, after: uuid.UUID | None = None
) -> list[Batch]:
    """The tenant's batches, newest first, from behind the id `after`."""
    wanted = "tenant_id = :tenant_id" + (" AND id < :after" if after is not None else "")
    rows = connection.execute(
        text(_SELECT % f"{wanted} ORDER BY id DESC LIMIT :limit" + " ORDER BY b.id DESC"),
        {"tenant_id": tenant_id, "limit": limit, "after": after},
    )
    return [_batch(row) for row in rows]


def cancel(connection: Connection, tenant_id: uuid.UUID, batch_id: uuid.UUID) -> bool:
    """Have the control process cancel what is left of a batch; False where it has no more to cancel."""
    return (
        connection.execute(
            text(
                """
                UPDATE batches SET status = 'cancelling', cancelling_at = now()
                WHERE id = :id AND tenant_id = :tenant_id AND status IN ('validating', 'in_progress')
                """
            ),
            {"id": batch_id, "tenant_id": tenant_id},
        ).rowcount
        == 1
    )


def _one(connection: Connection, which: str, values: Mapping[str, Any]) -> Batch | None:
    row = connection.execute(text(_SELECT % which), values).one_or_none()
    return _batch(row) if row else None


def _batch(row: Row[Any]) -> Batch:
    return Batch(**{**row._mapping, "status": BatchStatus(row.status)})
