"""Responses: what was asked for beside the job that answers it."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from jobs.store import moves
from jobs.store.moves import Moved


@dataclass(frozen=True, slots=True)
class Asked:
    """What a response was asked for with, beside its job's request; `body` is what is shown again of it."""

    job_id: uuid.UUID
    tenant_id: uuid.UUID
    body: Mapping[str, Any]
    background: bool
    stored: bool
    previous_id: uuid.UUID | None = None
    instructions: str | None = None
    dropped_tokens: int = 0


_COLUMNS = tuple(Asked.__dataclass_fields__)
_INSERT = text(
    f"INSERT INTO responses ({', '.join(_COLUMNS)})"
    f" VALUES ({', '.join(f'CAST(:{name} AS jsonb)' if name == 'body' else f':{name}' for name in _COLUMNS)})"
)


def insert(connection: Connection, asked: Asked) -> None:
    """Keep what was asked for, in the transaction that stores its job."""
    values = {name: getattr(asked, name) for name in _COLUMNS}
    connection.execute(_INSERT, values | {"body": json.dumps(asked.body, ensure_ascii=False)})


def get(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Asked | None:
    """What the tenant asked for, or None."""
    row = connection.execute(
        text(
            f"SELECT {', '.join(_COLUMNS)} FROM responses WHERE job_id = :job_id AND tenant_id = :tenant_id"
        ),
        {"job_id": job_id, "tenant_id": tenant_id},
    ).one_or_none()
    return Asked(**row._mapping) if row else None


# Held from the first, so that nothing moves it between its cancel and the end of its text.
_HOLD = text(
    "SELECT FROM jobs WHERE id = :id AND tenant_id = :tenant_id AND surface = 'response' FOR NO KEY UPDATE"
)
_ERASE = (
    "DELETE FROM responses WHERE job_id = :id",
    "DELETE FROM results WHERE job_id = :id",
    "DELETE FROM webhook_deliveries WHERE job_id = :id",
    """
    WITH copied AS (
        DELETE FROM precision_shadows WHERE job_id = :id AND compared_at IS NULL RETURNING shadow_id
    )
    DELETE FROM jobs WHERE id IN (SELECT shadow_id FROM copied)
    """,
    """
    UPDATE jobs SET request = '{}', prefix = 0, metadata = NULL, idempotency_key = NULL, payload_hash = NULL
    WHERE id = :id
    """,
)


def delete(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Moved | None:
    """Delete a response with all of its texts; one that has not ended is cancelled first.

    Its job stays, without request and answer, for its figures: the latency records and the tokens in them.
    Returns the cancel, whose worker is to be told, or None.
    """
    which = {"id": job_id, "tenant_id": tenant_id}
    if connection.execute(_HOLD, which).one_or_none() is None:
        return None
    moved = moves.cancel(connection, tenant_id, job_id)
    for statement in _ERASE:
        connection.execute(text(statement), which)
    return moved
