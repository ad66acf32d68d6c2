"""The worker processes of a local stack: which there are, how each is started, and when it is ready."""

import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import Engine

from jobs import gguf, model_files
from jobs.domain.lanes import slug
from jobs.settings import Settings, WorkerPlacement
from jobs.store import workers
from jobs.store.workers import WorkerState
from trilane.stack import StackError
from trilane.stack.supervisor import Part

_LARGE_MODEL_S = 1_800.0  # it is loaded and compiled, and on a card after those before it there


def placements(
    settings: Settings, lanes: Sequence[Sequence[str]] | None = None, engine: str | None = None
) -> list[WorkerPlacement]:
    """One entry for each process: those of `lanes`, else of the table, else one for each lane; of each model.

    Each has an engine; the one given holds for all. Raises `StackError` where a lane does not exist.
    """
    unknown = [lane for group in lanes or () for lane in group if lane not in settings.lanes]
    if unknown:
        raise StackError(f"no lane {unknown[0]!r}: the lanes are {', '.join(settings.lanes)}")
    groups = lanes or [(lane,) for lane in settings.lanes]
    entries = [
        WorkerPlacement(lanes=serving, model=settings.further(model))
        for model in settings.served
        for group in groups
        if (serving := tuple(lane for lane in group if lane in settings.lanes_of(model)))
    ]
    if not lanes and settings.workers:
        entries = list(settings.workers)
    return [
        entry.model_copy(update={"engine": engine or entry.engine or settings.engine.name})
        for entry in entries
    ]


def names(entries: Sequence[WorkerPlacement]) -> Iterator[str]:
    """`worker-cold`, a further model's behind it, and `worker-cold-2` for the next of the same."""
    counts: Counter[str] = Counter()
    for entry in entries:
        name = "-".join(("worker", *entry.lanes, *([slug(entry.model)] if entry.model else [])))
        counts[name] += 1
        yield name if counts[name] == 1 else f"{name}-{counts[name]}"


def arguments(entry: WorkerPlacement) -> list[str]:
    """What `trilane worker` is called with."""
    cards = ["--gpu", ",".join(map(str, entry.gpus))] if entry.gpus else []
    model = ["--model", entry.model] if entry.model else []
    return ["--lanes", ",".join(entry.lanes), *cards, *model, "--engine", str(entry.engine)]


def complete(settings: Settings, entries: Sequence[WorkerPlacement]) -> bool:
    """Whether every lane of every model has a worker."""
    there = {(lane, entry.model or settings.model) for entry in entries for lane in entry.lanes}
    return there >= {(lane, model) for model in settings.served for lane in settings.lanes_of(model)}


def niceness(settings: Settings, entry: WorkerPlacement) -> int:
    """The worker's compute priority: its fastest lane's on the processor; on a card MPS sees to that."""
    return 0 if entry.gpus else min(settings.lanes[lane].niceness for lane in entry.lanes)


def start_timeout_s(entry: WorkerPlacement) -> float:
    """How long the worker may take until it is ready; vLLM needs its time on a processor too."""
    return _LARGE_MODEL_S if entry.gpus or entry.engine == "vllm" else Part.start_timeout_s


def fitted_lanes(
    settings: Settings, entries: Sequence[WorkerPlacement], engine: str | None = None
) -> dict[str, dict[str, Any]]:
    """Overrides of lanes, none longer than its local model, so that the API refuses what cannot fit.

    A lane without a worker here counts as one with the engine given.
    """
    overrides = {lane: dict(changes) for lane, changes in settings.lane.items()}
    elsewhere = set(settings.lanes).difference(*(entry.lanes for entry in entries))
    others = placements(settings, [tuple(elsewhere)], engine) if elsewhere else []
    for entry in (*entries, *others):
        if entry.engine != "llamacpp":
            continue
        own = settings.of_model(entry.model or settings.model)
        path = entry.model_path or own.engine.model_path or model_files.smollm2_path()
        context = gguf.context_length(gguf.read_metadata(path))
        for lane in entry.lanes:
            given = overrides.get(lane, {}).get("max_model_len", settings.lanes[lane].max_model_len)
            if given > context:
                overrides.setdefault(lane, {})["max_model_len"] = context
    return overrides


class Readiness:
    """Whether a worker process takes jobs; says how far its warm-up is, whenever that changes."""

    def __init__(
        self, name: str, database: Engine, pid: Callable[[], int | None], say: Callable[[str], None]
    ) -> None:
        """Look for the worker that runs as process `pid`; `name` is what it is called when it says so."""
        self._name, self._database, self._pid, self._say = name, database, pid, say
        self._said = ""

    def __call__(self) -> bool:
        """Look now."""
        end = f"@{socket.gethostname()}:{self._pid()}"  # of the name that `trilane worker` takes
        with self._database.connect() as connection:
            rows = [row for row in workers.alive(connection) if row.name.endswith(end)]
        progress = "".join(map(_progress, rows))
        if progress not in ("", self._said):
            self._said = progress
            self._say(f"{self._name} {progress}")
        return any(row.state is WorkerState.READY for row in rows)


def _progress(row: workers.Worker) -> str:
    figures = row.figures.get("warm_up") or {}
    if row.state is not WorkerState.WARMING or "of" not in figures:
        return ""
    return f"warms up: {figures['done']} of {figures['of']}"
