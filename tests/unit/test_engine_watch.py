"""A worker ends by itself when its engine has died, or should start anew without speculation."""

import asyncio
from typing import Any

import pytest

from jobs.domain.policies import SpeculationPolicy
from workers import speculation_watch
from workers.engine_watch import EngineWatch
from workers.engines.seam import EngineStats
from workers.engines.sim import SimEngine


class Forgetful:
    """Remembers what was turned off, without Redis."""

    def __init__(self) -> None:
        self.off: list[SpeculationPolicy] = []

    def turn_off(self, speculation: SpeculationPolicy) -> None:
        self.off.append(speculation)


async def ends(watch: EngineWatch) -> bool:
    """Whether the watch says so within a moment."""
    try:
        async with asyncio.timeout(1.0):
            await watch.should_end(lambda: True)
    except TimeoutError:
        return False
    return True


def test_it_ends_once_the_engine_is_dead_and_not_before() -> None:
    async def both() -> tuple[bool, bool]:
        engine = SimEngine("model")
        watch = EngineWatch(engine)
        alive = await ends(watch)
        engine.dead = True
        return alive, await ends(watch)

    assert asyncio.run(both()) == (False, True)


def test_bad_speculation_ends_it_and_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculation_watch, "LOOK_EVERY_S", 0.001)
    policy, memory = SpeculationPolicy(min_acceptance=0.6), Forgetful()

    async def watched(acceptance: float) -> bool:
        engine = SimEngine("model")
        stats = EngineStats(running=1, spec_acceptance=acceptance)
        monkeypatch.setattr(engine, "stats", lambda: stats)
        kept: Any = memory
        return await ends(EngineWatch(engine, policy, kept))

    assert not asyncio.run(watched(0.7))
    assert memory.off == []
    assert asyncio.run(watched(0.5))
    assert memory.off == [policy]
