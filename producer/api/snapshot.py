"""The lanes' figures and the workers, looked up once a second at most however many ask."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from jobs.settings import Settings
from jobs.store import deliveries, lanes, shadows, workers
from jobs.store.deliveries import DeliveryFigures
from jobs.store.lanes import LaneFigures
from jobs.store.shadows import ShadowFigures
from jobs.store.workers import Worker, WorkerState

FRESH_FOR_S = 1.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The lanes, the live workers and the webhooks at one moment."""

    lanes: Mapping[str, LaneFigures]
    workers: Sequence[Worker]
    deliveries: DeliveryFigures
    shadows: Sequence[ShadowFigures] = ()

    def worker_states(
        self, lane: str, serves: Callable[[Worker], bool] = lambda worker: True
    ) -> dict[WorkerState, int]:
        """How many workers of a lane are in each state; those that `serves` is true of."""
        states = [worker.state for worker in self.workers if lane in worker.lanes and serves(worker)]
        return {state: states.count(state) for state in WorkerState}


def serving(settings: Settings, model: str | None) -> Callable[[Worker], bool]:
    """Tells the workers of a model; None is the first, whose workers may call it otherwise."""
    further = settings.further(model)
    return lambda worker: settings.further(worker.model) == further


def take(connection: Connection, names: list[str]) -> Snapshot:
    """The figures of these lanes now."""
    return Snapshot(
        lanes.figures(connection, names),
        workers.alive(connection),
        deliveries.figures(connection),
        shadows.figures(connection),
    )


class Snapshots:
    """Shares one look between all who ask within `FRESH_FOR_S`."""

    def __init__(self, look: Callable[[], Awaitable[Snapshot]]) -> None:
        self._look = look
        self._lock = asyncio.Lock()
        self._latest: tuple[float, Snapshot] | None = None

    async def get(self) -> Snapshot:
        """A snapshot that is fresh. Raises what the look raises."""
        async with self._lock:
            if self._latest is None or time.monotonic() - self._latest[0] > FRESH_FOR_S:
                self._latest = (time.monotonic(), await self._look())
            return self._latest[1]
