"""Speculation that guesses badly is turned off for its lane, and stays off over a restart."""

import asyncio
from dataclasses import replace

import pytest
import redis

from jobs.domain.policies import SpeculationPolicy
from workers import speculation_watch
from workers.engines.seam import EngineStats
from workers.engines.sim import SimEngine
from workers.speculation_watch import LOOKS, Memory, TooFew

POLICY = SpeculationPolicy(min_acceptance=0.6)
BAD, GOOD, IDLE = (
    EngineStats(1, spec_acceptance=0.5),
    EngineStats(1, spec_acceptance=0.6),
    EngineStats(0, spec_acceptance=0.5),
)


def test_only_a_whole_window_of_work_below_the_least_is_too_few() -> None:
    judge = TooFew(0.6)
    assert not any(judge.see(stats) for stats in [BAD] * (LOOKS - 1) + [GOOD] + [BAD] * (LOOKS - 1))
    assert not any(judge.see(IDLE) for _ in range(LOOKS))
    assert not judge.see(EngineStats(1))
    assert judge.see(BAD)


def test_it_is_remembered_for_this_policy_model_and_lane(redis_url: str) -> None:
    memory = Memory(redis_url, "model", ["warm"])
    assert not memory.is_off(POLICY)
    memory.turn_off(POLICY)
    again = Memory(redis_url, "model", ["warm"])
    assert again.is_off(POLICY)
    assert not again.is_off(replace(POLICY, tokens=3))
    assert not Memory(redis_url, "model", ["cold"]).is_off(POLICY)
    assert not Memory(redis_url, "another", ["warm"]).is_off(POLICY)
    assert 0 < redis.Redis.from_url(redis_url).ttl("trilane:speculation-off:warm:model") <= 86_400


def test_without_redis_the_lane_speculates() -> None:
    memory = Memory("redis://127.0.0.1:1/0", "model", ["warm"])
    memory.turn_off(POLICY)
    assert not memory.is_off(POLICY)


def test_the_worker_starts_anew_only_when_it_has_nothing_to_do(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speculation_watch, "LOOK_EVERY_S", 0.0)
    memory = Memory(redis_url, "model", ["warm"])
    engine = SimEngine("model")
    monkeypatch.setattr(engine, "stats", lambda: BAD)
    idle = False

    async def run() -> None:
        nonlocal idle
        watching = asyncio.create_task(speculation_watch.watch(engine, POLICY, memory, lambda: idle))
        async with asyncio.timeout(10):
            while not memory.is_off(POLICY):
                await asyncio.sleep(0)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not watching.done()
            idle = True
            await watching

    asyncio.run(run())
