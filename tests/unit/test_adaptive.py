"""The rules of a lane's limit and window, one cause at a time."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from jobs.domain import adaptive
from jobs.domain.adaptive import Cause, Limit, Look, Window

LEAST, START, MOST = 4, 8, 16
LOOK_S = 0.5
CALM = Look(taken=4, batch=0.6, slowness=0.5)
BUSY = Look(taken=8, full=True, batch=1.0, slowness=0.5)

Moves = list[tuple[float, Cause, int]]


def moves(moving: Limit | Window, seen: Look | Callable[[float], Look], seconds: float) -> Moves:
    """What looks every half second come to: when, why and whereto."""

    def found() -> Iterator[tuple[float, Cause, int]]:
        for n in range(round(seconds / LOOK_S)):
            now_s = 1_000 + n * LOOK_S
            look = seen(now_s - 1_000) if callable(seen) else seen
            if cause := moving.look(now_s, look):
                yield now_s - 1_000, cause, moving.value

    return list(found())


def limit(start: int = START) -> Limit:
    return Limit(LEAST, start, MOST)


def test_it_grows_by_one_while_jobs_wait_for_places_up_to_the_most() -> None:
    grown = moves(limit(), BUSY, 60)
    assert [value for _, _, value in grown] == list(range(9, MOST + 1))
    assert {cause for _, cause, _ in grown} == {Cause.WAITING}
    assert grown[0][0] == adaptive.GROW_AFTER_S
    assert all(late - early >= adaptive.GROW_AFTER_S for (early, *_), (late, *_) in pairwise(grown))


@pytest.mark.parametrize(
    "change",
    [
        {"full": False},
        {"slowness": None},
        {"slowness": 0.95},
        {"kv_usage": 0.8},
        {"engine_waiting": 1},
    ],
    ids=str,
)
def test_it_does_not_grow(change: dict[str, Any]) -> None:
    asked = moves(limit(), replace(BUSY, **change), 4)
    assert asked == []


@pytest.mark.parametrize(
    ("trouble", "after_s"),
    [
        (replace(CALM, slowness=1.01), 0),
        (replace(CALM, preempted=True), 0),
        (replace(CALM, over_memory=True), 0),
        (replace(CALM, engine_waiting=3), adaptive.ENGINE_QUEUE_S),
        (replace(CALM, kv_usage=0.76), adaptive.KV_FULL_S),
    ],
)
@pytest.mark.parametrize("full", [False, True])
def test_trouble_takes_a_fifth_again_and_again_down_to_the_least(
    trouble: Look, after_s: float, full: bool
) -> None:
    shrunk = moves(limit(MOST), replace(trouble, full=full), 1_700)
    assert [value for _, _, value in shrunk] == [12, 9, 7, 5, 4]
    assert shrunk[0][0] == after_s
    between_s = max(after_s, adaptive.SETTLE_S)
    assert all(late - early >= between_s for (early, *_), (late, *_) in pairwise(shrunk))
    assert len({cause for _, cause, _ in shrunk}) == 1


@pytest.mark.parametrize(
    ("trouble", "cause"),
    [
        ({"slowness": 1.01}, Cause.LATENCY),
        ({"preempted": True}, Cause.PREEMPTIONS),
        ({"over_memory": True}, Cause.MEMORY),
        ({"engine_waiting": 3}, Cause.ENGINE_QUEUE),
        ({"kv_usage": 0.76}, Cause.KV_USAGE),
        ({"full": False, "taken": 5}, Cause.UNUSED),
    ],
)
def test_each_cause_has_its_name(trouble: dict[str, Any], cause: Cause) -> None:
    assert {found for _, found, _ in moves(limit(), replace(BUSY, **trouble), 301)} == {cause}


def test_a_passing_peak_of_the_kv_cache_changes_nothing() -> None:
    def seen(at_s: float) -> Look:
        return replace(CALM, kv_usage=0.5 if at_s == 250 else 0.9)

    assert moves(limit(), seen, 549) == []
    assert moves(limit(), seen, 552)[0][:2] == (550.5, Cause.KV_USAGE)


def test_it_recovers_when_the_trouble_is_over_but_not_at_once() -> None:
    moved = moves(limit(), lambda at_s: replace(BUSY, preempted=at_s == 10), 60)
    ups_before = [at_s for at_s, cause, _ in moved if cause is Cause.WAITING and at_s < 10]
    after = [(at_s, cause, value) for at_s, cause, value in moved if at_s >= 10]
    assert len(ups_before) == MOST - START
    assert after[:2] == [
        (10, Cause.PREEMPTIONS, 12),
        (10 + adaptive.REGROW_AFTER_S, Cause.WAITING, 13),
    ]
    assert after[-1][2] == MOST


def test_a_lane_at_work_gives_up_places_that_it_never_needs() -> None:
    found = moves(limit(MOST), lambda at_s: replace(CALM, taken=9, full=at_s >= 90), 92)
    assert found[:2] == [(30, Cause.UNUSED, 12), (60, Cause.UNUSED, 10)]
    assert found[2] == (91, Cause.WAITING, 11)  # and has them back as soon as it does


def test_an_idle_lane_keeps_its_places() -> None:
    assert moves(limit(MOST), replace(CALM, taken=LEAST), 10_000) == []


def test_a_fixed_limit_never_moves() -> None:
    fixed = Limit(8, 8, 8)
    assert moves(fixed, BUSY, 60) == moves(fixed, replace(BUSY, slowness=9.0, preempted=True), 60) == []


def test_the_window_widens_with_a_full_batch_and_narrows_with_an_empty_one() -> None:
    window = Window(50, 200)
    assert [value for _, _, value in moves(window, BUSY, 60)] == [100, 150, 200]
    assert moves(window, CALM, 60) == []
    narrowed = moves(window, replace(CALM, batch=0.4), 60)
    assert [(cause, value) for _, cause, value in narrowed] == [
        (Cause.BATCH_EMPTY, value) for value in (150, 100, 50)
    ]


def test_the_window_gives_way_before_the_limit_does() -> None:
    window, near = Window(50, 200), replace(BUSY, slowness=0.95)
    moves(window, BUSY, 60)
    assert {cause for _, cause, _ in moves(window, near, 60)} == {Cause.NEAR_OBJECTIVE}
    assert window.value == 50
    assert moves(limit(), near, 60) == []


def test_a_fixed_window_never_moves() -> None:
    assert moves(Window(50, 50), BUSY, 60) == moves(Window(50, 50), replace(CALM, batch=0.0), 60) == []
