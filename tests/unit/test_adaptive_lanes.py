"""A worker's admission: what it sees of its engine, its cards and its answers moves limits and windows."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest
from structlog.testing import capture_logs

from jobs.domain import adaptive
from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.latency import LatencyRecord
from trilane.bench import virtual_time
from workers.admission import LOOK_EVERY_S, Admission
from workers.engines.seam import Engine, EngineStats

WARM = LANES["warm"]
GIB = 2**30


class FakeEngine:
    """An engine whose state is told to it."""

    def __init__(self) -> None:
        self.now = EngineStats()

    def stats(self) -> EngineStats:
        return self.now


class Rig:
    """An admission that runs in virtual time beside a made-up engine and made-up cards."""

    def __init__(self, *lanes: LanePolicy) -> None:
        self.engine = FakeEngine()
        self.cards: dict[str, dict[str, float]] = {}
        self.woken = 0
        self.admission = Admission({lane.name: lane for lane in lanes}, self._figures)
        self.slots = self.admission.slots

    def _figures(self) -> Mapping[str, Mapping[str, float]]:
        return self.cards

    def _wake(self) -> None:
        self.woken += 1

    def limit(self, lane: str = "warm") -> int:
        limit: int = self.admission.figures()[lane]["limit"]
        return limit

    def moves(self, lane: str = "warm") -> dict[str, int]:
        moves: dict[str, int] = self.admission.figures()[lane]["moves"]
        return moves

    def fill(self, lane: str = "warm") -> None:
        """Take every place, all of it in the engine."""
        self.slots.take(lane, 99)
        self.engine.now = replace(self.engine.now, running=self.slots.in_flight())

    def answer(self, ms: float, lane: str = "warm", times: int = 1, **fields: float) -> None:
        """Jobs that were claimed so long ago end now."""
        for _ in range(times):
            record = LatencyRecord("succeeded", lane, decode_ms=ms, total_ms=ms)
            self.admission.ended(replace(record, **fields))  # type: ignore[arg-type]  # all of them are times

    async def look(self, times: float = 1) -> None:
        """Let the controller look so often."""
        await asyncio.sleep(times * LOOK_EVERY_S + 0.001)

    def run(self, test: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            engine = cast(Engine, self.engine)  # of which nothing but its state is asked for
            moving = asyncio.create_task(self.admission.run(engine, self._wake))
            await asyncio.sleep(0)
            await test()
            moving.cancel()

        virtual_time.run(main())


def test_it_begins_with_what_the_policies_say() -> None:
    made = Admission(LANES)
    assert made.total == 16
    assert made.figures() == {
        name: {"limit": limit, "window_ms": window_ms, "moves": {}, "last_cause": None}
        for name, limit, window_ms in (("hot", 8, 50), ("warm", 8, 50), ("cold", 2, 500))
    }


def test_waiting_jobs_open_places_wake_the_consumer_and_are_told_of() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.fill()
        assert rig.slots.free("warm") == 0
        rig.answer(100, times=8)
        with capture_logs() as logs:
            await rig.look(3)
        assert (rig.slots.free("warm"), rig.woken) == (1, 1)
        assert {"event": "admission.moved", "before": 8, "after": 9, "cause": "waiting"}.items() <= (
            logs[0].items()
        )
        figures = rig.admission.figures()["warm"]
        assert (figures["limit"], figures["last_cause"]) == (9, "waiting")

    rig.run(test)


def test_the_next_place_waits_for_answers_that_began_with_the_last() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.fill()
        rig.answer(100, times=8)
        await rig.look(3)
        rig.fill()
        await rig.look(6)
        rig.answer(10_000, times=8, decode_ms=4_000)  # claimed before the move: they tell nothing of it
        await rig.look(3)
        assert rig.limit() == 9
        rig.answer(100, times=8)
        await rig.look(3)
        assert rig.limit() == 10

    rig.run(test)


def test_an_engine_that_does_not_run_what_is_admitted_gets_no_more() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.fill()
        rig.engine.now = EngineStats(running=4)
        rig.answer(100, times=8)
        await rig.look(20)
        assert rig.limit() == 8

    rig.run(test)


@pytest.mark.parametrize(
    ("stats", "cards", "cause", "after_s"),
    [
        (EngineStats(preemptions=1), {}, "preemptions", 0),
        (EngineStats(waiting=1), {}, "engine_queue", adaptive.ENGINE_QUEUE_S),
        (EngineStats(kv_usage=0.8), {}, "kv_usage", adaptive.KV_FULL_S),
        (EngineStats(), {"memory_used_bytes": 75 * GIB, "memory_total_bytes": 80 * GIB}, "memory", 0),
        (
            EngineStats(),
            {
                "memory_used_bytes": 76 * GIB,
                "memory_total_bytes": 80 * GIB,
                "memory_own_bytes": 75 * GIB,
            },
            "memory",
            0,
        ),
    ],
)
def test_each_trouble_shrinks_the_limit_and_is_named(
    stats: EngineStats, cards: dict[str, float], cause: str, after_s: float
) -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.engine.now = stats
        rig.cards = {"0": cards} if cards else {}
        await rig.look(after_s / LOOK_EVERY_S)
        assert rig.limit() == 8
        await rig.look()
        assert (rig.limit(), rig.moves()) == (6, {cause: 1})
        assert rig.slots.limit("warm") == 6

    rig.run(test)


def test_a_part_of_the_card_that_others_hold_is_not_the_lanes_own() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.cards = {
            "0": {
                "memory_used_bytes": 79 * GIB,
                "memory_total_bytes": 80 * GIB,
                "memory_own_bytes": 70 * GIB,
            }
        }
        await rig.look(20)
        assert rig.limit() == 8

    rig.run(test)


def test_lanes_of_one_engine_have_its_cap_together() -> None:
    """The engine of warm and cold takes warm's 0.85 of the card; cold's 0.5 would forbid it."""
    cold = replace(LANES["cold"], limit=4, limit_min=1)
    rig = Rig(WARM, cold)

    async def test() -> None:
        rig.cards = {"0": {"memory_used_bytes": 70 * GIB, "memory_total_bytes": 80 * GIB}}
        await rig.look(20)
        assert (rig.limit("warm"), rig.limit("cold")) == (8, 4)

    rig.run(test)


def test_preemptions_of_the_warm_up_do_not_count() -> None:
    rig = Rig(WARM)
    rig.engine.now = EngineStats(preemptions=7)

    async def test() -> None:
        await rig.look(20)
        assert rig.limit() == 8

    rig.run(test)


def test_slow_answers_shrink_and_recovery_grows_again() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.fill()
        rig.answer(900, times=8)
        await rig.look()
        assert (rig.limit(), rig.moves()) == (6, {"latency": 1})
        assert rig.slots.free("warm") == 0  # two above the limit: they end in their own time
        rig.slots.give("warm", 2)
        assert rig.slots.free("warm") == 0
        await rig.look(10)
        rig.answer(400, times=8)
        await rig.look(adaptive.REGROW_AFTER_S / LOOK_EVERY_S)
        assert rig.limit() == 7
        assert {"latency": 1, "waiting": 1}.items() <= rig.moves().items()
        assert rig.slots.free("warm") == 1

    rig.run(test)


def test_the_wait_for_a_place_is_no_reason_to_have_fewer() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.fill()
        rig.answer(400, times=8, total_ms=60_000, queue_ms=59_600)
        await rig.look(3)
        assert rig.moves() == {"waiting": 1}

    rig.run(test)


def test_what_did_not_succeed_is_no_measure() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        for _ in range(8):
            rig.admission.ended(LatencyRecord("cancel", "warm", decode_ms=90_000, total_ms=90_000))
        await rig.look(3)
        assert rig.limit() == 8

    rig.run(test)


def test_a_faster_lane_of_the_same_engine_counts_with_all_its_latency() -> None:
    rig = Rig(*LANES.values())

    async def test() -> None:
        rig.fill()
        rig.answer(100, times=8)
        rig.answer(100, "hot", times=8, total_ms=290)  # near its objective: warm does not grow
        await rig.look(4)
        assert rig.limit() == 8
        rig.answer(100, "hot", times=8, total_ms=310)
        await rig.look()
        assert (rig.limit(), rig.moves()) == (6, {"latency": 1})
        assert rig.moves("hot") == rig.moves("cold") == {}

    rig.run(test)


def test_a_slower_lane_does_not_count() -> None:
    rig = Rig(replace(LANES["hot"], limit_min=2), WARM)

    async def test() -> None:
        rig.answer(900, times=8)
        await rig.look()
        assert (rig.limit("hot"), rig.moves("hot")) == (8, {})
        assert rig.moves() == {"latency": 1}

    rig.run(test)


def test_a_lane_without_an_objective_grows_as_its_answers_come() -> None:
    rig = Rig(replace(LANES["cold"], limit_max=8))

    async def test() -> None:
        rig.fill("cold")
        await rig.look(20)
        assert rig.limit("cold") == 2
        rig.answer(500_000, "cold")
        await rig.look(3)
        assert rig.limit("cold") == 3

    rig.run(test)


def test_the_window_moves_with_the_batch_and_the_gate_follows() -> None:
    rig = Rig(WARM)

    async def test() -> None:
        rig.engine.now = EngineStats(running=8)
        rig.answer(100, times=8)
        with capture_logs() as logs:
            await rig.look(5)
        assert rig.admission.figures()["warm"]["window_ms"] == 100
        assert logs[0]["event"] == "admission.window_moved"
        assert (logs[0]["before_ms"], logs[0]["after_ms"], logs[0]["cause"]) == (50, 100, "batch_full")
        rig.engine.now = EngineStats(running=1)
        await rig.look(6)
        assert rig.admission.figures()["warm"]["window_ms"] == 50
        assert rig.moves() == {"batch_full": 1, "batch_empty": 1}

    rig.run(test)
