"""Whether the process lives, and whether jobs sent now would be done."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from jobs.store.workers import WorkerState
from producer.api.errors import STATUS, ErrorBody, ErrorDetail
from producer.api.services import Services, Shared
from producer.api.snapshot import Snapshot
from producer.refusals import Code, Refusal

router = APIRouter(tags=["operation"])


class State(StrEnum):
    """How one part is."""

    READY = "ready"
    WARMING = "warming"  # a worker lives, but none of the lane's takes jobs yet
    MISSING = "missing"
    UNKNOWN = "unknown"  # the database that knows is away


class Alive(BaseModel):
    """The process answers."""

    ok: bool = True


class WarmUp(BaseModel):
    """How far the warm-up of a lane's worker is, in steps."""

    done: int
    of: int


class Readiness(BaseModel):
    """What is there and what is not."""

    ready: bool
    database: State
    broker: State
    lanes: Mapping[str, State]
    warm_up: Mapping[str, WarmUp] = Field(description="Of lanes that are warming, where a worker tells it.")
    error: ErrorDetail | None


@router.get("/healthz")
async def healthz() -> Alive:
    """Whether the process answers; asks nothing else."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Something is missing"}})
async def readyz(services: Shared, response: Response) -> Readiness:
    """Whether the database, the broker and a ready worker for each lane are there."""
    lanes, warm_up = await _lanes(services)
    broker = State.READY if await services.hub.ping() else State.MISSING
    database = State.MISSING if State.UNKNOWN in lanes.values() else State.READY
    parts = {"database": database, "broker": broker, **{f"lane {name}": lanes[name] for name in lanes}}
    progress = {f"lane {name}": f" ({one.done} of {one.of})" for name, one in warm_up.items()}
    lacking = [
        f"{name} is {state}{progress.get(name, '')}"
        for name, state in parts.items()
        if state is not State.READY
    ]
    error = None
    if lacking:
        response.status_code = STATUS[Code.NOT_READY]
        response.headers["Retry-After"] = "2"
        error = ErrorBody.of(Refusal(Code.NOT_READY, ", ".join(lacking))).error
    return Readiness(
        ready=not lacking, database=database, broker=broker, lanes=lanes, warm_up=warm_up, error=error
    )


async def _lanes(services: Services) -> tuple[dict[str, State], dict[str, WarmUp]]:
    """Each lane's state, and the progress of those that are warming."""
    names = list(services.settings.lanes)
    try:
        snapshot = await services.snapshots.get()
    except SQLAlchemyError:
        return dict.fromkeys(names, State.UNKNOWN), {}
    lanes = {name: _state(snapshot.worker_states(name)) for name in names}
    return lanes, _warm_up(snapshot, [name for name in names if lanes[name] is State.WARMING])


def _state(workers: Mapping[WorkerState, int]) -> State:
    if workers[WorkerState.READY]:
        return State.READY
    return State.WARMING if workers[WorkerState.STARTING] or workers[WorkerState.WARMING] else State.MISSING


def _warm_up(snapshot: Snapshot, lanes: Sequence[str]) -> dict[str, WarmUp]:
    """How far the furthest of each lane's warming workers is."""
    furthest: dict[str, WarmUp] = {}
    for worker in snapshot.workers:
        figures = worker.figures.get("warm_up") or {}
        if worker.state is not WorkerState.WARMING or "of" not in figures:
            continue
        progress = WarmUp(done=figures["done"], of=figures["of"])
        for lane in set(worker.lanes) & set(lanes):
            furthest[lane] = max(furthest.get(lane, progress), progress, key=lambda one: one.done / one.of)
    return furthest
