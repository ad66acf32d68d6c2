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


def delete(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Moved | None:
    """Delete a response with its job and all that hangs on it; one that has not ended is cancelled first.

    Returns that cancel, whose worker is to be told, or None.
    """
    moved = moves.cancel(connection, tenant_id, job_id)
    connection.execute(
        text("DELETE FROM jobs WHERE id = :id AND tenant_id = :tenant_id AND surface = 'response'"),
        {"id": job_id, "tenant_id": tenant_id},
    )
    return moved
