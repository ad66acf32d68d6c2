"""The lanes now: what waits and runs, how fast it goes, and whether each lane keeps its objective."""

from collections.abc import Mapping, Sequence

from fastapi import APIRouter
from pydantic import BaseModel, Field

from jobs.domain.lanes import LanePolicy
from jobs.store.lanes import WINDOW_S, LaneFigures
from jobs.store.workers import WorkerState
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Shared

router = APIRouter(tags=["operation"])


class LaneView(BaseModel):
    """One lane, over all tenants. Milliseconds are from acceptance to the recorded result."""

    name: str
    depth: Mapping[str, int] = Field(description="Waiting jobs by band of priority.")
    waiting: int
    running: int
    oldest_wait_s: float | None = Field(description="How long the oldest job that may run has waited.")
    throughput_per_s: float = Field(description="Succeeded jobs.")
    output_tokens_per_s: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    objective_ms: int | None = Field(description="For the P99; null: only deadlines count.")
    met: bool | None = Field(description="Null without an objective or without jobs.")
    workers: Mapping[WorkerState, int] = Field(description="Live workers by state.")


class LaneList(BaseModel):
    """All lanes, the fastest first."""

    window_s: int = Field(description="The time that throughput and percentiles are of.")
    data: Sequence[LaneView]


@router.get("/v1/lanes", responses=responses())
async def lanes(_tenant: CurrentTenant, services: Shared) -> LaneList:
    """Depth, throughput and latency of each lane, at most a second old."""
    snapshot = await services.snapshots.get()
    views = [
        _view(policy, snapshot.lanes[name], snapshot.worker_states(name))
        for name, policy in services.settings.lanes.items()
    ]
    return LaneList(window_s=WINDOW_S, data=views)


def _view(policy: LanePolicy, figures: LaneFigures, workers: Mapping[WorkerState, int]) -> LaneView:
    judged = policy.objective_ms is not None and figures.p99_ms is not None
    return LaneView(
        name=policy.name,
        depth=figures.depth,
        waiting=sum(figures.depth.values()),
        running=figures.running,
        oldest_wait_s=figures.oldest_wait_s,
        throughput_per_s=figures.throughput_per_s,
        output_tokens_per_s=figures.output_tokens_per_s,
        p50_ms=figures.p50_ms,
        p95_ms=figures.p95_ms,
        p99_ms=figures.p99_ms,
        objective_ms=policy.objective_ms,
        met=(figures.p99_ms or 0) <= (policy.objective_ms or 0) if judged else None,
        workers=workers,
    )
