"""Records how attempts ended: many in one transaction, each under its own fence."""

import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, insert, text
from sqlalchemy.dialects.postgresql import insert as upsert

from jobs.domain.jobs import MOVES, Move, Status
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import FinishReason, Usage
from jobs.store import deliveries, tables


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a succeeded job."""

    output: str
    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class Ending:
    """How one attempt ended. `move` None adds only the latency record (the job is no longer ours).

    `delay_s` puts off the next try of a retry. `announced` says that the caller announces the job itself.
    """

    job_id: uuid.UUID
    attempt: int
    move: Move | None
    latency: LatencyRecord
    answer: Answer | None = None
    error_code: str | None = None
    error_message: str | None = None
    delay_s: float | None = None
    announced: bool = False


_MOVE = text(
    f"""
    WITH given AS (
        SELECT * FROM unnest(
            CAST(:ids AS uuid[]), CAST(:attempts AS int[]), CAST(:statuses AS text[]),
            CAST(:charges AS int[]), CAST(:delays AS float8[]), CAST(:announced AS bool[]),
            CAST(:codes AS text[]), CAST(:messages AS text[])
        ) AS given (id, attempt, status, charge, delay_s, announced, code, message)
    ), held AS (
        SELECT given.* FROM jobs j JOIN given ON given.id = j.id AND given.attempt = j.attempt
        WHERE j.id = ANY(CAST(:ids AS uuid[])) AND j.status = 'running'
        ORDER BY j.id FOR UPDATE OF j
    )
    UPDATE jobs j
    SET status = held.status,
        failures = j.failures + held.charge,
        lease_until = NULL,
        error_code = held.code,
        error_message = held.message,
        finished_at = CASE WHEN held.status <> 'queued' THEN now() END,
        ready_at = CASE WHEN held.status = 'queued'
            THEN now() + make_interval(secs => coalesce(held.delay_s, 0)) ELSE j.ready_at END,
        due_at = CASE WHEN held.delay_s > 0 THEN now() + make_interval(secs => held.delay_s) END,
        announced_at = CASE WHEN held.announced THEN clock_timestamp()
            WHEN held.status <> 'queued' THEN j.announced_at END,
        announcements = CASE WHEN held.status = 'queued' THEN held.announced::int ELSE j.announcements END
    FROM held WHERE j.id = held.id
    RETURNING {deliveries.EVENT_COLUMNS}
    """
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What `record` did: `ended` maps each (job, attempt) whose fence stood to the job's status now."""

    ended: dict[tuple[uuid.UUID, int], Status]
    deliveries: int


def record(connection: Connection, endings: Sequence[Ending]) -> Recorded:
    """Write the endings in one transaction: job, result, latency record and deliveries together.

    An ending whose fence has fallen changes no job and writes no result; its latency record is kept
    unless that attempt has one. Each attempt may appear once. Raises what Postgres raises for a value
    that it cannot store; then nothing is written.
    """
    moving = [(ending, MOVES[ending.move]) for ending in endings if ending.move is not None]
    rows: Sequence[Any] = ()
    if moving:
        rows = connection.execute(
            _MOVE,
            {
                "ids": [ending.job_id for ending, _ in moving],
                "attempts": [ending.attempt for ending, _ in moving],
                "statuses": [rule.target.value for _, rule in moving],
                "charges": [int(rule.charges) for _, rule in moving],
                "delays": [ending.delay_s for ending, _ in moving],
                "announced": [ending.announced for ending, _ in moving],
                "codes": [ending.error_code for ending, _ in moving],
                "messages": [ending.error_message for ending, _ in moving],
            },
        ).all()
    ended = {(row.id, row.attempt): Status(row.status) for row in rows}
    results = [_result(e) for e in endings if (e.job_id, e.attempt) in ended and e.answer is not None]
    if results:
        connection.execute(insert(tables.results), results)
    write_latency(connection, [(e.job_id, e.attempt, e.latency) for e in endings])
    answers = {
        row["job_id"]: {k: v for k, v in row.items() if k not in ("job_id", "attempt")} for row in results
    }
    return Recorded(ended, deliveries.write(connection, rows, answers))


def write_latency(connection: Connection, given: Sequence[tuple[uuid.UUID, int, LatencyRecord]]) -> None:
    """Keep the latency records of (job, attempt) pairs; the first one of an attempt stays."""
    if given:
        connection.execute(
            upsert(tables.latency_records).on_conflict_do_nothing(),
            [{"job_id": job_id, "attempt": attempt, **asdict(latency)} for job_id, attempt, latency in given],
        )


def _result(ending: Ending) -> dict[str, Any]:
    answer = ending.answer
    if answer is None:
        raise ValueError("an ending without an answer has no result")
    return {
        "job_id": ending.job_id,
        "attempt": ending.attempt,
        "output": answer.output,
        "finish_reason": answer.finish_reason.value,
        "prompt_tokens": answer.usage.prompt_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "output_tokens": answer.usage.output_tokens,
    }
