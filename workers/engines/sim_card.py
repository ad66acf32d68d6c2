"""A simulated card whose time several engines divide."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial


@dataclass(eq=False, slots=True)
class _Step:
    share: float
    left_s: float  # of the card's whole time
    done: asyncio.Future[None]


class SharedCard:
    """Engines that compute at the same time divide the card by their shares; one alone has all of it.

    Nothing is lost by dividing. That is the best case of a card whose lanes have their own part of its
    processors (CUDA MPS); what they cost each other in memory bandwidth is not modelled.
    """

    def __init__(self) -> None:
        self._steps: list[_Step] = []
        self._seen_at = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def part(self, share: float) -> Callable[[float], Awaitable[None]]:
        """What an engine of this share gives its steps' seconds to (`SimEngine(compute=...)`)."""
        return partial(self._compute, share)

    async def _compute(self, share: float, seconds: float) -> None:
        self._pass_time()
        step = _Step(share, seconds, asyncio.get_running_loop().create_future())
        self._steps.append(step)
        self._set_timer()
        try:
            await step.done
        finally:
            if step in self._steps:  # closed
                self._pass_time()
                self._steps.remove(step)
                self._set_timer()

    def _pass_time(self) -> None:
        now = asyncio.get_running_loop().time()
        shares = sum(step.share for step in self._steps)
        for step in self._steps:
            step.left_s -= (now - self._seen_at) * step.share / shares
        self._seen_at = now

    def _set_timer(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._steps:
            shares = sum(step.share for step in self._steps)
            soonest_s = min(step.left_s * shares / step.share for step in self._steps)
            self._timer = asyncio.get_running_loop().call_later(soonest_s, self._finish)

    def _finish(self) -> None:
        self._pass_time()
        for step in [step for step in self._steps if step.left_s < 1e-9]:
            self._steps.remove(step)
            if not step.done.done():
                step.done.set_result(None)
        self._set_timer()
