"""The routes of models: which are served, and by which lanes."""

from collections.abc import Mapping, Sequence
from typing import Literal

import structlog
from fastapi import APIRouter
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError

from jobs.store.workers import WorkerState
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Services, Shared
from producer.api.snapshot import Snapshot, serving
from producer.openai.tiers import TIER_OF_LANE
from producer.served import Served

log = structlog.get_logger()
router = APIRouter(tags=["models"])


class LaneOfModel(BaseModel):
    """A lane that serves a model."""

    name: str
    service_tier: str = Field(description="The tier that asks for it.")
    max_model_len: int = Field(description="Prompt and answer together, in tokens.")
    ready: bool | None = Field(description="Whether a worker takes jobs now; null: the database is away.")


class ModelView(BaseModel):
    """A model that can be asked for."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(default=0, description="Not known.")
    owned_by: str = "trilane"
    lanes: Sequence[LaneOfModel] = Field(description="The fastest first.")


class ModelList(BaseModel):
    """All models, the one that is asked when none is named first."""

    object: Literal["list"] = "list"
    data: Sequence[ModelView]


@router.get("/v1/models", responses=responses())
async def list_models(_tenant: CurrentTenant, services: Shared) -> ModelList:
    """The models that are served."""
    snapshot, find = await _snapshot(services), services.submitter.preparer.models.find
    return ModelList(data=[_view(services, find(name), snapshot) for name in services.settings.served])


@router.get("/v1/models/{model:path}", responses=responses(404))
async def retrieve_model(model: str, _tenant: CurrentTenant, services: Shared) -> ModelView:
    """A model that is served."""
    found = services.submitter.preparer.models.find(model)
    return _view(services, found, await _snapshot(services))


async def _snapshot(services: Services) -> Snapshot | None:
    try:
        return await services.snapshots.get()
    except SQLAlchemyError as error:
        log.warning("models.readiness_unknown", error=type(error).__name__)
        return None


def _view(services: Services, model: Served, snapshot: Snapshot | None) -> ModelView:
    serves = serving(services.settings, model.name)
    states: Mapping[str, Mapping[WorkerState, int]] = (
        {lane: snapshot.worker_states(lane, serves) for lane in model.lanes} if snapshot else {}
    )
    return ModelView(
        id=model.name,
        lanes=[
            LaneOfModel(
                name=name,
                service_tier=TIER_OF_LANE[name],
                max_model_len=policy.max_model_len,
                ready=bool(states[name][WorkerState.READY]) if snapshot else None,
            )
            for name, policy in model.lanes.items()
        ],
    )
