"""A worker that is still starting, and the signal that ends it."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from celery.platforms import EX_OK
from celery.worker import state

from workers import pool
from workers.pool import LanePool

PATIENCE_S = 10.0


class Hanging(SimpleNamespace):
    """A service that never gets ready."""

    capacity = 1
    wake: Callable[[], None]

    async def start(self) -> None:
        await asyncio.sleep(3_600)


def test_a_signal_in_the_moment_before_the_wait_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "should_stop", None)
    monkeypatch.setattr(pool, "_exit_soon", lambda _status: None)
    worker = LanePool.serving(Hanging(), grace_s=1.0)(limit=1)
    wait, signalled = threading.Condition.wait, list[bool]()

    def interrupted(condition: threading.Condition, timeout: float | None = None) -> bool:
        # As a handler runs: in the thread that waits, which holds the condition's lock.
        if threading.current_thread() is threading.main_thread() and not signalled:
            signalled.append(True)
            worker.drain(1.0)
            return wait(condition, min(timeout or PATIENCE_S, PATIENCE_S))
        return wait(condition, timeout)

    monkeypatch.setattr(threading.Condition, "wait", interrupted)
    with pytest.raises(SystemExit) as ended:
        worker.on_start()
    assert signalled
    assert ended.value.code == EX_OK
