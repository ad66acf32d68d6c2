"""Why a worker ends by itself: its engine has died, or should start anew without speculation."""

import asyncio
from collections.abc import Callable

import structlog

from jobs.domain.policies import SpeculationPolicy
from workers import speculation_watch
from workers.engines.seam import Engine
from workers.speculation_watch import Memory

LOOK_EVERY_S = 0.25

log = structlog.get_logger()


class EngineWatch:
    """Watches the engine of one worker; `speculation` is the policy that it started with, if any."""

    def __init__(
        self, engine: Engine, speculation: SpeculationPolicy | None = None, memory: Memory | None = None
    ) -> None:
        """`memory` keeps what is found out about the speculation."""
        self._engine, self._speculation, self._memory = engine, speculation, memory

    async def should_end(self, is_idle: Callable[[], bool]) -> None:
        """Return once the process should end; `is_idle` tells whether it has nothing to do."""
        reasons = [asyncio.create_task(self._died())]
        if self._speculation is not None and self._memory is not None:
            watching = speculation_watch.watch(self._engine, self._speculation, self._memory, is_idle)
            reasons.append(asyncio.create_task(watching))
        try:
            done, _ = await asyncio.wait(reasons, return_when=asyncio.FIRST_COMPLETED)
            for reason in done:
                reason.result()
        finally:
            for reason in reasons:
                reason.cancel()

    async def _died(self) -> None:
        while not self._engine.dead:  # noqa: ASYNC110 - an engine may die in a thread or a process of its own
            await asyncio.sleep(LOOK_EVERY_S)
        log.error("engine.dead", engine=self._engine.name)
