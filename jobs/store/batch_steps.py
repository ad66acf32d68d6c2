"""The steps of a batch's life, which the control process takes: started, watched, cancelled, ended."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text

from jobs.domain.events import EndpointEvent
from jobs.domain.jobs import Job
from jobs.store import endpoint_events
from jobs.store.batches import BatchStatus
from jobs.store.rows import JOB_COLUMNS, job_of

_TYPES = {
    "total": "int",
    "completed": "int",
    "failed": "int",
    "errors": "jsonb",
    "usage": "jsonb",
    "output_file_id": "uuid",
    "error_file_id": "uuid",
}


@dataclass(frozen=True, slots=True)
class BatchLine:
    """A line of a batch with its job and the job's answer, if it has one."""

    line: int
    custom_id: str
    job: Job | None  # None: deleted meanwhile
    result: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """A batch that has not ended: what the control process needs of it."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    endpoint: str
    status: BatchStatus
    input_file_id: uuid.UUID
    output_expires_s: int | None
    expires_at: datetime


def unfinished(connection: Connection) -> list[OpenBatch]:
    """The batches that have not ended, oldest first."""
    rows = connection.execute(
        text(
            f"""
            SELECT {", ".join(OpenBatch.__dataclass_fields__)} FROM batches
            WHERE status IN ('validating', 'in_progress', 'finalizing', 'cancelling') ORDER BY id
            """
        )
    )
    return [OpenBatch(**{**row._mapping, "status": BatchStatus(row.status)}) for row in rows]


def add_items(
    connection: Connection, batch_id: uuid.UUID, items: Sequence[tuple[int, str, uuid.UUID]]
) -> None:
    """Bind jobs to a batch by COPY: each its line, its `custom_id` and the job's id."""
    raw: Any = connection.connection.driver_connection
    columns = "batch_id, line, custom_id, job_id"
    with raw.cursor() as cursor, cursor.copy(f"COPY batch_items ({columns}) FROM STDIN") as copy:
        for item in items:
            copy.write_row((batch_id, *item))


def start(connection: Connection, batch_id: uuid.UUID, model: str | None, total: int) -> bool:
    """A batch is valid, and its jobs wait; False where it was cancelled meanwhile."""
    source, target = BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS
    return _moved(connection, batch_id, source, target, model=model, total=total)


def fail(connection: Connection, batch_id: uuid.UUID, errors: Mapping[str, Any]) -> bool:
    """A batch is not valid, and nothing of it runs; False where it was cancelled meanwhile."""
    return _moved(connection, batch_id, BatchStatus.VALIDATING, BatchStatus.FAILED, errors=json.dumps(errors))


def finalize(connection: Connection, batch_id: uuid.UUID) -> bool:
    """All jobs of a batch have ended, and its files are to be written."""
    return _moved(connection, batch_id, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)


def first_open(connection: Connection, batch_id: uuid.UUID, from_line: int) -> int | None:
    """The first line from `from_line` on whose job has not ended; None where all have."""
    line: int | None = connection.execute(
        text(
            """
            SELECT i.line FROM batch_items i JOIN jobs j ON j.id = i.job_id
            WHERE i.batch_id = :id AND i.line >= :line AND j.status IN ('queued', 'running')
            ORDER BY i.line LIMIT 1
            """
        ),
        {"id": batch_id, "line": from_line},
    ).scalar_one_or_none()
    return line


def cancel_jobs(connection: Connection, batch_id: uuid.UUID, n: int = 5_000) -> list[tuple[uuid.UUID, bool]]:
    """Cancel up to `n` jobs of a batch; each with whether it ran. Empty once all have ended."""
    rows = connection.execute(
        text(
            """
            WITH held AS (
                SELECT j.id, j.status AS source FROM jobs j
                WHERE j.status IN ('queued', 'running')
                AND j.id IN (SELECT job_id FROM batch_items WHERE batch_id = :id)
                ORDER BY j.id LIMIT :n FOR NO KEY UPDATE
            )
            UPDATE jobs j SET status = 'cancelled', finished_at = now(), lease_until = NULL,
                error_code = NULL, error_message = NULL
            FROM held WHERE j.id = held.id RETURNING j.id, held.source
            """
        ),
        {"id": batch_id, "n": n},
    )
    return [(row.id, row.source == "running") for row in rows]


# Of the request, which may be long, only what an answer repeats.
_REQUEST = "jsonb_build_object('shown', coalesce(j.request -> 'shown', '{}')) AS request"
_JOB_COLUMNS = [_REQUEST if name == "request" else f"j.{name}" for name in JOB_COLUMNS.split(", ")]
_LINES = text(
    f"""
    SELECT i.line, i.custom_id, {", ".join(_JOB_COLUMNS)},
        r.job_id AS answered, r.attempt AS answered_attempt, r.output, r.finish_reason,
        r.prompt_tokens AS used_prompt_tokens, r.cached_tokens, r.output_tokens, r.choices, r.windows
    FROM batch_items i LEFT JOIN jobs j ON j.id = i.job_id LEFT JOIN results r ON r.job_id = j.id
    WHERE i.batch_id = :id AND i.line > :after ORDER BY i.line LIMIT :n
    """
)


def lines(connection: Connection, batch_id: uuid.UUID, after: int, n: int) -> list[BatchLine]:
    """Up to `n` lines behind the line `after`, in order, with their jobs (without prompts) and answers."""
    return [_line(row) for row in connection.execute(_LINES, {"id": batch_id, "after": after, "n": n})]


def _line(row: Row[Any]) -> BatchLine:
    if row.id is None:
        return BatchLine(row.line, row.custom_id, None, None)
    result = None
    if row.answered is not None:
        result = {
            "attempt": row.answered_attempt,
            "prompt_tokens": row.used_prompt_tokens,
            **{
                name: row._mapping[name]
                for name in (
                    "output",
                    "finish_reason",
                    "cached_tokens",
                    "output_tokens",
                    "choices",
                    "windows",
                )
            },
        }
    return BatchLine(row.line, row.custom_id, job_of(row), result)


def end(
    connection: Connection,
    batch_id: uuid.UUID,
    status: BatchStatus,
    *,
    output_file_id: uuid.UUID | None,
    error_file_id: uuid.UUID | None,
    completed: int,
    failed: int,
    usage: Mapping[str, Any] | None,
) -> bool:
    """A batch has ended: completed, expired or cancelled; False where another ended it."""
    return _moved(
        connection,
        batch_id,
        BatchStatus.CANCELLING if status is BatchStatus.CANCELLED else BatchStatus.FINALIZING,
        status,
        output_file_id=output_file_id,
        error_file_id=error_file_id,
        completed=completed,
        failed=failed,
        usage=None if usage is None else json.dumps(usage),
    )


def forget_items(connection: Connection, age_s: float, n: int = 10_000) -> int:
    """Delete up to `n` items of batches that ended more than `age_s` ago; the batches stay."""
    return connection.execute(
        text(
            """
            DELETE FROM batch_items WHERE (batch_id, line) IN (
                SELECT i.batch_id, i.line FROM batches b JOIN batch_items i ON i.batch_id = b.id
                WHERE coalesce(b.completed_at, b.expired_at, b.cancelled_at)
                    < now() - make_interval(secs => :age_s)
                LIMIT :n
            )
            """
        ),
        {"age_s": age_s, "n": n},
    ).rowcount


def _moved(
    connection: Connection, batch_id: uuid.UUID, source: BatchStatus, target: BatchStatus, **values: Any
) -> bool:
    """Compare-and-set on (id, `source`), with these columns; who asked for it is told of a batch's end."""
    changes = [f"{name} = CAST(:{name} AS {_TYPES.get(name, 'text')})" for name in values]
    tenant_id: uuid.UUID | None = connection.execute(
        text(
            f"""
            UPDATE batches SET {", ".join((f"{target}_at = clock_timestamp()", "status = :target", *changes))}
            WHERE id = :id AND status = :source RETURNING tenant_id
            """
        ),
        {"id": batch_id, "source": source.value, "target": target.value, **values},
    ).scalar_one_or_none()
    if tenant_id is None:
        return False
    if target.final:
        endpoint_events.batch_ended(connection, batch_id, tenant_id, EndpointEvent(f"batch.{target}"))
    return True
