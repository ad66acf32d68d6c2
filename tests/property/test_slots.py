"""A worker's places, whatever is taken and given back in whatever order, and however the limits move."""

from hypothesis import given
from hypothesis import strategies as st

from workers.slots import Slots

LANES = ("hot", "warm", "cold")
limits = st.tuples(*[st.integers(1, 10)] * 3).map(lambda each: dict(zip(LANES, each, strict=True)))
uses = st.tuples(st.sampled_from(LANES), st.integers(-5, 5))
moved = st.tuples(st.sampled_from(LANES), st.integers(1, 16).map(lambda limit: f"limit {limit}"))


@given(limits, st.lists(uses | moved, max_size=60))
def test_no_bound_is_ever_passed_and_nothing_is_lost(
    limits: dict[str, int], steps: list[tuple[str, int | str]]
) -> None:
    slots, used, limits = Slots(limits), dict.fromkeys(LANES, 0), dict(limits)
    for lane, step in steps:
        full = [name for name in LANES if not slots.free(name)]
        opened: bool | None = None
        match step:
            case str():
                limits[lane] = int(step.split()[1])
                opened = slots.move(lane, limits[lane])
            case n if n < 0:
                n = min(-n, used[lane])
                opened = slots.give(lane, n)
                used[lane] -= n
            case n:
                taken = slots.take(lane, n)
                used[lane] += taken
                if taken:
                    assert used[lane] <= limits[lane]
                    assert sum(used.values()) <= max(limits.values())
                    assert lane != "cold" or used[lane] <= max(max(limits.values()) // 2, 1)
                assert taken == n or not slots.free(lane)
        if opened is not None:
            assert opened == any(slots.free(name) for name in full)
        assert {name: slots.taken(name) for name in LANES} == used
        assert sum(used.values()) == slots.in_flight()
    for lane in LANES:
        slots.give(lane, used[lane])
    assert slots.in_flight() == 0
    assert all(slots.free(lane) for lane in LANES)


@given(limits, st.lists(uses, max_size=60))
def test_hot_work_finds_a_place_beside_any_slower_work(
    limits: dict[str, int], steps: list[tuple[str, int]]
) -> None:
    slots = Slots(limits | {"warm": max(limits["warm"], 2)})
    for lane, n in steps:
        if lane != "hot" and n > 0:
            slots.take(lane, n)
    assert slots.free("hot") >= 1


@given(st.integers(1, 10), st.integers(1, 16))
def test_a_lane_alone_has_all_places_of_the_limit_that_it_has_now(limit: int, moved: int) -> None:
    slots = Slots({"cold": limit})
    assert slots.take("cold", 99) == limit
    assert slots.move("cold", moved) == (moved > limit)
    assert slots.free("cold") == max(moved - limit, 0)
