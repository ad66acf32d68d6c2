"""The admission gate: when it opens, and in which order it lets in."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from jobs.domain.jobs import Claim, new_id
from jobs.domain.lanes import LANES
from workers.gate import EngineLoad, Gate

LONG_WINDOW = replace(LANES["warm"], window_ms=60_000, window_max_ms=None)
SHORT_WINDOW = replace(LANES["warm"], window_ms=20, window_max_ms=None)


def claim(prefix: int = 0, tokens: int = 10) -> Claim:
    return Claim(new_id(), 1, 0, 3, "warm", 5, "m", {}, tokens, prefix, 0.0, 0.0, 60.0)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(5):
            await test()

    asyncio.run(bounded())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_idle_engine_admits_at_once() -> None:
    async def test() -> None:
        assert await Gate(LONG_WINDOW, 4, EngineLoad()).enter(claim()) == 1

    run(test)


def test_a_busy_one_gathers_until_the_places_are_full_and_admits_by_prefix_then_length() -> None:
    async def test() -> None:
        gate, admitted = Gate(LONG_WINDOW, 4, EngineLoad()), []

        async def enter(prefix: int, tokens: int) -> None:
            await gate.enter(claim(prefix, tokens))
            admitted.append((prefix, tokens))

        await gate.enter(claim())
        entering = [asyncio.create_task(enter(*key)) for key in ((2, 10), (1, 90))]
        await settle()
        assert admitted == []
        entering.append(asyncio.create_task(enter(1, 20)))
        await asyncio.gather(*entering)
        assert admitted == [(1, 20), (1, 90), (2, 10)]

    run(test)


def test_it_opens_when_the_window_has_passed() -> None:
    async def test() -> None:
        gate = Gate(SHORT_WINDOW, 4, EngineLoad())
        await gate.enter(claim())
        assert await gate.enter(claim()) == 2

    run(test)


def test_it_opens_when_the_engine_becomes_idle() -> None:
    async def test() -> None:
        gate = Gate(LONG_WINDOW, 4, EngineLoad())
        await gate.enter(claim())
        waiting = asyncio.create_task(gate.enter(claim()))
        await settle()
        gate.leave()
        assert await waiting == 1

    run(test)


def test_a_lower_limit_admits_what_was_gathered_where_nothing_more_can_come() -> None:
    async def test() -> None:
        gate = Gate(LONG_WINDOW, 8, EngineLoad())
        await gate.enter(claim())
        waiting = asyncio.create_task(gate.enter(claim()))
        await settle()
        gate.move(limit=3, window_ms=60_000)
        await settle()
        assert not waiting.done()
        gate.move(limit=2, window_ms=60_000)
        assert await waiting == 2
        assert await gate.enter(claim()) == 3  # above its limit nobody is held up: their places were taken

    run(test)


def test_another_window_holds_from_the_next_gathering_on() -> None:
    async def test() -> None:
        gate = Gate(LONG_WINDOW, 8, EngineLoad())
        await gate.enter(claim())
        gate.move(limit=8, window_ms=20)
        assert await gate.enter(claim()) == 2

    run(test)


def test_a_work_conserving_lane_never_holds_back() -> None:
    async def test() -> None:
        gate = Gate(replace(LONG_WINDOW, work_conserving=True), 4, EngineLoad())
        assert [await gate.enter(claim()) for _ in range(3)] == [1, 2, 3]

    run(test)


@pytest.mark.parametrize("admitted_already", [False, True])
def test_a_job_closed_in_the_gate_leaves_no_trace(admitted_already: bool) -> None:
    async def test() -> None:
        load = EngineLoad()
        gate = Gate(LONG_WINDOW, 4, load)
        await gate.enter(claim())
        waiting = asyncio.create_task(gate.enter(claim()))
        await settle()
        if admitted_already:
            gate.leave()  # lets the waiting one in, which has not run yet
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert load.running == (0 if admitted_already else 1)
        if not admitted_already:
            gate.leave()
        assert await gate.enter(claim()) == 1

    run(test)
