"""The worker processes that are alive, and what they serve."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, text

ALIVE_S = 30.0  # a worker not seen for this long is dead


class WorkerState(StrEnum):
    """Where a worker process stands."""

    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker process."""

    name: str
    lanes: Sequence[str]
    state: WorkerState
    model: str | None = None
    engine: str | None = None
    precision: str | None = None
    gpu: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)  # its engine, admission, warm-up and cards now
    seen_at: datetime | None = None


_REPORT = text(
    """
    INSERT INTO workers (name, lanes, state, model, engine, precision, gpu, figures)
    VALUES (:name, :lanes, :state, :model, :engine, :precision, :gpu, CAST(:figures AS jsonb))
    ON CONFLICT (name) DO UPDATE SET lanes = excluded.lanes, state = excluded.state, model = excluded.model,
        engine = excluded.engine, precision = excluded.precision, gpu = excluded.gpu,
        figures = excluded.figures, seen_at = now(),
        started_at = CASE WHEN excluded.state = 'starting' THEN now() ELSE workers.started_at END
    """
)


def report(connection: Connection, worker: Worker) -> None:
    """Say that this worker lives, and in which state."""
    values = asdict(worker) | {"figures": json.dumps(worker.figures)}
    connection.execute(_REPORT, {**values, "lanes": list(worker.lanes), "state": worker.state.value})


def leave(connection: Connection, name: str) -> None:
    """Say that this worker is gone."""
    connection.execute(text("DELETE FROM workers WHERE name = :name"), {"name": name})


def alive(connection: Connection) -> list[Worker]:
    """The workers seen within `ALIVE_S` seconds."""
    rows = connection.execute(
        text(
            "SELECT name, lanes, state, model, engine, precision, gpu, figures, seen_at FROM workers"
            " WHERE seen_at > now() - make_interval(secs => :alive_s) ORDER BY name"
        ),
        {"alive_s": ALIVE_S},
    )
    return [Worker(**{**row._mapping, "state": WorkerState(row.state)}) for row in rows]


def forget_dead(connection: Connection) -> None:
    """Drop the rows of workers not seen for a day."""
    connection.execute(text("DELETE FROM workers WHERE seen_at < now() - interval '1 day'"))
