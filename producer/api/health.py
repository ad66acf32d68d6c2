"""Whether the process lives, and whether jobs sent now would be done."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from fastapi import APIRouter, Response
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from jobs.store.workers import WorkerState
from producer.api.errors import STATUS, ErrorBody, ErrorDetail
from producer.api.services import Services, Shared
from producer.api.snapshot import Snapshot, serving
from producer.refusals import Code, Refusal

router = APIRouter(tags=["operation"])


class State(StrEnum):
    """How one part is."""

    READY = "ready"
    WARMING = "warming"  # a worker lives, but none of the lane's takes jobs yet
    MISSING = "missing"
    UNKNOWN = "unknown"  # the database that knows is away


_READINESS = list(State)  # the least ready last


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
    lanes: Mapping[str, State] = Field(description="Each as that of its models which is least ready.")
    warm_up: Mapping[str, WarmUp] = Field(description="Of lanes that are warming, where a worker tells it.")
    error: ErrorDetail | None


@router.get("/healthz")
async def healthz() -> Alive:
    """Whether the process answers; asks nothing else."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Something is missing"}})
async def readyz(services: Shared, response: Response) -> Readiness:
    """Whether the database, the broker and a ready worker for each lane and model are there."""
    workers, warm_up = await _workers(services)
    broker = State.READY if await services.hub.ping() else State.MISSING
    database = State.MISSING if State.UNKNOWN in workers.values() else State.READY
    lanes = {
        name: max((state for (lane, _), state in workers.items() if lane == name), key=_READINESS.index)
        for name in services.settings.lanes
    }
    of_lanes = {
        f"lane {lane} of {model}" if model else f"lane {lane}": state
        for (lane, model), state in workers.items()
    }
    parts = {"database": database, "broker": broker, **of_lanes}
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


async def _workers(services: Services) -> tuple[dict[tuple[str, str | None], State], dict[str, WarmUp]]:
    """The state of each lane and further model (None: the first), and the progress of lanes that warm up."""
    settings = services.settings
    wanted = [
        (lane, settings.further(model)) for model in settings.served for lane in settings.lanes_of(model)
    ]
    try:
        snapshot = await services.snapshots.get()
    except SQLAlchemyError:
        return dict.fromkeys(wanted, State.UNKNOWN), {}
    states = {
        (lane, model): _state(snapshot.worker_states(lane, serving(settings, model)))
        for lane, model in wanted
    }
    return states, _warm_up(snapshot, [lane for (lane, _), state in states.items() if state is State.WARMING])


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
