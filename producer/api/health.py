"""Whether the process lives, and whether jobs sent now would be done."""

from collections.abc import Mapping
from enum import StrEnum

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from jobs.store.workers import WorkerState
from producer.api.errors import STATUS, ErrorBody, ErrorDetail
from producer.api.services import Services, Shared
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


class Readiness(BaseModel):
    """What is there and what is not."""

    ready: bool
    database: State
    broker: State
    lanes: Mapping[str, State]
    error: ErrorDetail | None


@router.get("/healthz")
async def healthz() -> Alive:
    """Whether the process answers; asks nothing else."""
    return Alive()


@router.get("/readyz", responses={503: {"model": Readiness, "description": "Something is missing"}})
async def readyz(services: Shared, response: Response) -> Readiness:
    """Whether the database, the broker and a ready worker for each lane are there."""
    lanes = await _lanes(services)
    broker = State.READY if await services.hub.ping() else State.MISSING
    database = State.MISSING if State.UNKNOWN in lanes.values() else State.READY
    parts = {"database": database, "broker": broker, **{f"lane {name}": lanes[name] for name in lanes}}
    lacking = [f"{name} is {state}" for name, state in parts.items() if state is not State.READY]
    error = None
    if lacking:
        response.status_code = STATUS[Code.NOT_READY]
        response.headers["Retry-After"] = "2"
        error = ErrorBody.of(Refusal(Code.NOT_READY, ", ".join(lacking))).error
    return Readiness(ready=not lacking, database=database, broker=broker, lanes=lanes, error=error)


async def _lanes(services: Services) -> dict[str, State]:
    names = list(services.settings.lanes)
    try:
        snapshot = await services.snapshots.get()
    except SQLAlchemyError:
        return dict.fromkeys(names, State.UNKNOWN)
    return {name: _state(snapshot.worker_states(name)) for name in names}


def _state(workers: Mapping[WorkerState, int]) -> State:
    if workers[WorkerState.READY]:
        return State.READY
    return State.WARMING if workers[WorkerState.STARTING] or workers[WorkerState.WARMING] else State.MISSING
