"""Records how attempts ended: many in one transaction, each under its own fence."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import Connection, Double, Integer, Text, text

from jobs.domain.jobs import MOVES, Move, Rule, Status
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import Choice, FinishReason, Usage
from jobs.store import deliveries, tables


@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a succeeded job."""

    output: str
    finish_reason: FinishReason
    usage: Usage
    choices: tuple[Choice, ...] = ()
    windows: int = 0


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


def _arrays(columns: Mapping[str, str], prefix: str = "") -> str:
    """Rows as one array for each column: one statement and one round trip, however many there are."""
    arrays = (f"CAST(:{prefix}{name} AS {kind}[])" for name, kind in columns.items())
    return f"unnest({', '.join(arrays)}) AS given ({', '.join(columns)})"


_KINDS: Mapping[type, str] = {Text: "text", Double: "float8", Integer: "int"}
_LATENCY = {"job_id": "uuid", "attempt": "int"} | {
    name: _KINDS[type(tables.latency_records.c[name].type)] for name in LatencyRecord.__dataclass_fields__
}
_latency_values = attrgetter(*LatencyRecord.__dataclass_fields__)
_INSERT_LATENCY = (
    f"INSERT INTO latency_records ({', '.join(_LATENCY)})"
    f" SELECT * FROM {_arrays(_LATENCY, 'latency_')}"
    # A job may be deleted while it runs.
    " WHERE EXISTS (SELECT FROM jobs WHERE jobs.id = given.job_id) ON CONFLICT DO NOTHING"
)

_ENDING = {
    "id": "uuid",
    "attempt": "int",
    "status": "text",
    "charge": "int",
    "delay_s": "float8",
    "announced": "bool",
    "code": "text",
    "message": "text",
    "output": "text",
    "finish_reason": "text",
    "prompt_tokens": "int",
    "cached_tokens": "int",
    "output_tokens": "int",
    "choices": "text",
    "windows": "int",
}
_RECORD = text(
    f"""
    WITH held AS (
        SELECT given.* FROM jobs j
        JOIN {_arrays(_ENDING)} ON given.id = j.id AND given.attempt = j.attempt
        WHERE j.id = ANY(CAST(:id AS uuid[])) AND j.status = 'running'
        ORDER BY j.id FOR NO KEY UPDATE OF j
    ), answered AS (
        INSERT INTO results
            (job_id, attempt, output, finish_reason, prompt_tokens, cached_tokens, output_tokens,
             choices, windows)
        SELECT id, attempt, output, finish_reason, prompt_tokens, cached_tokens, output_tokens,
            CAST(choices AS jsonb), windows
        FROM held WHERE output IS NOT NULL
    ), measured AS ({_INSERT_LATENCY})
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
    moving = [_values(ending, MOVES[ending.move]) for ending in endings if ending.move is not None]
    latency = [(ending.job_id, ending.attempt, ending.latency) for ending in endings]
    rows = connection.execute(_RECORD, _columns(_ENDING, moving) | _latency_columns(latency)).all()
    ended = {(row.id, row.attempt): Status(row.status) for row in rows}
    answers = {
        ending.job_id: _result(ending.answer)
        for ending in endings
        if ending.answer is not None and (ending.job_id, ending.attempt) in ended
    }
    return Recorded(ended, deliveries.write(connection, rows, answers))


def write_latency(connection: Connection, given: Sequence[tuple[uuid.UUID, int, LatencyRecord]]) -> None:
    """Keep the latency records of (job, attempt) pairs; the first one of an attempt stays."""
    if given:
        connection.execute(text(_INSERT_LATENCY), _latency_columns(given))


def _values(ending: Ending, rule: Rule) -> tuple[Any, ...]:
    answer = ending.answer
    return (
        ending.job_id,
        ending.attempt,
        rule.target.value,
        int(rule.charges),
        ending.delay_s,
        ending.announced,
        ending.error_code,
        ending.error_message,
        *(_result(answer).values() if answer else (None,) * 5),
        json.dumps([asdict(choice) for choice in answer.choices]) if answer and answer.choices else None,
        answer.windows if answer else None,
    )


def _result(answer: Answer) -> dict[str, Any]:
    return {
        "output": answer.output,
        "finish_reason": answer.finish_reason.value,
        "prompt_tokens": answer.usage.prompt_tokens,
        "cached_tokens": answer.usage.cached_tokens,
        "output_tokens": answer.usage.output_tokens,
    }


def _latency_columns(given: Sequence[tuple[uuid.UUID, int, LatencyRecord]]) -> dict[str, list[Any]]:
    # In key order: two that write the same records, such as a sweeper and a worker back from the dead, would
    # otherwise wait for each other.
    ordered = sorted(given, key=itemgetter(0, 1))
    rows = [(job_id, attempt, *_latency_values(latency)) for job_id, attempt, latency in ordered]
    return _columns((f"latency_{name}" for name in _LATENCY), rows)


def _columns(names: Iterable[str], rows: Sequence[tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names)}
