"""An asyncio loop whose clock jumps to the next timer: hours of waiting take no longer than their work."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Stuck(RuntimeError):
    """Everybody waits, and no timer will ever wake anybody."""


class _Selector(selectors.DefaultSelector):
    """Passes the time that it is asked to wait, and looks for no events."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stuck("nothing is ready and no timer runs")
        self.now_s += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop that begins at 0 s and knows timers only: no sockets, no threads, no child processes."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._virtual.now_s


def run(work: Coroutine[Any, Any, T]) -> T:
    """As `asyncio.run`, in virtual time and so with the same result each time. Raises `Stuck`."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)
