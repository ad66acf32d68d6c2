"""A worker's row among the workers: its state, told at each change and often enough to count as alive."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any

from sqlalchemy import Engine as Database

from jobs.store import workers
from jobs.store.workers import Worker, WorkerState
from workers.engines.seam import Engine
from workers.outage import OutageTolerated

_REPORT_EVERY_S = workers.ALIVE_S / 4


class Presence:
    """Tells of one worker; a database that is away is told later."""

    def __init__(
        self,
        database: Database,
        executor: Executor,
        name: str,
        lanes: Sequence[str],
        engine: Engine,
        figures: Callable[[], dict[str, Any]] = dict,
    ) -> None:
        """Begin in the state `starting`; nothing is told before `run`. `figures` gives what the row shows."""
        self.state = WorkerState.STARTING
        self._database, self._executor = database, executor
        self._name, self._lanes, self._engine = name, list(lanes), engine
        self._figures = figures
        self._changed = asyncio.Event()

    def tell(self, state: WorkerState) -> None:
        """Take this state, and have it told."""
        self.state = state
        self._changed.set()

    async def run(self) -> None:
        """Tell for ever."""
        while True:
            self._changed.clear()
            await self._in_thread(partial(self._report, self._figures()))
            try:
                async with asyncio.timeout(_REPORT_EVERY_S):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def leave(self) -> None:
        """Tell that the worker is gone."""
        await self._in_thread(self._leave)

    async def _in_thread(self, call: Callable[[], None]) -> None:
        with OutageTolerated("worker.database_away"):
            await asyncio.get_running_loop().run_in_executor(self._executor, call)

    def _report(self, figures: dict[str, Any]) -> None:
        engine = self._engine
        worker = Worker(
            self._name,
            self._lanes,
            self.state,
            model=engine.model,
            engine=engine.name,
            precision=engine.precision,
            gpu=engine.device,
            figures=figures,
        )
        with self._database.begin() as connection:
            workers.report(connection, worker)

    def _leave(self) -> None:
        with self._database.begin() as connection:
            workers.leave(connection, self._name)
