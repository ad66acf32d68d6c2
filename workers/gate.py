"""The admission gate of a lane: gathers claimed jobs while the engine is busy and admits them in order."""

import asyncio
from dataclasses import dataclass

from jobs.domain.jobs import Claim
from jobs.domain.lanes import LanePolicy


@dataclass(slots=True)
class EngineLoad:
    """The jobs of all lanes that are in the engine now."""

    running: int = 0


class Gate:
    """Admits at once while the engine is idle or the lane is work-conserving; else gathers.

    What was gathered is admitted when the window has passed since the first came, when no more could be
    admitted anyway, or when the engine has become idle: equal prompt beginnings together, short before
    long. The number of jobs in the gate and behind it is bounded by the lane's places, not here.
    """

    def __init__(self, policy: LanePolicy, limit: int, load: EngineLoad) -> None:
        """`limit` jobs can be admitted at once; `load` is shared by the gates of one engine."""
        self._window_s = policy.window_ms / 1_000
        self._work_conserving = policy.work_conserving
        self._limit = limit
        self._load = load
        self._inside = 0
        self._waiting: list[tuple[Claim, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, claim: Claim) -> int:
        """Wait to be admitted; returns the batch that the job joins, itself counted. `leave` must follow."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, future))
        self._consider()
        if not future.done():
            try:
                await future
            except asyncio.CancelledError:
                if future.cancelled():
                    self._waiting = [entry for entry in self._waiting if entry[1] is not future]
                    raise
                self.leave()  # admitted in the very moment in which it was closed
                raise
        return self._load.running

    def leave(self) -> None:
        """One admitted job has left the engine."""
        self._inside -= 1
        self._load.running -= 1
        if self._waiting:
            self._consider()

    def move(self, limit: int, window_ms: int) -> None:
        """Take another limit and another window; one that has begun keeps its time."""
        self._limit, self._window_s = limit, window_ms / 1_000
        if self._waiting:
            self._consider()

    def _consider(self) -> None:
        full = self._inside + len(self._waiting) >= self._limit
        if self._work_conserving or full or self._load.running == 0:
            self._open()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._window_s, self._open)

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        for _, future in sorted(waiting, key=lambda entry: (entry[0].prefix, entry[0].prompt_tokens)):
            if not future.done():
                self._inside += 1
                self._load.running += 1
                future.set_result(None)
