"""A worker's places, whatever is taken and given back in whatever order."""

from hypothesis import given
from hypothesis import strategies as st

from workers.slots import Slots

LANES = ("hot", "warm", "cold")
limits = st.tuples(*[st.integers(1, 10)] * 3).map(lambda each: dict(zip(LANES, each, strict=True)))
moves = st.lists(st.tuples(st.sampled_from(LANES), st.integers(-5, 5)), max_size=60)


@given(limits, st.integers(1, 12), moves)
def test_no_bound_is_ever_passed_and_nothing_is_lost(
    limits: dict[str, int], total: int, moves: list[tuple[str, int]]
) -> None:
    slots, used = Slots(limits, total), dict.fromkeys(LANES, 0)
    for lane, n in moves:
        if n < 0:
            n = min(-n, used[lane])
            full = [name for name in LANES if not slots.free(name)]
            opened = slots.give(lane, n)
            used[lane] -= n
            assert opened == any(slots.free(name) for name in full)
        else:
            before = slots.free(lane)
            taken = slots.take(lane, n)
            assert taken == min(n, before)
            used[lane] += taken
        assert sum(used.values()) == slots.in_flight() <= total
        assert all(used[name] <= limits[name] for name in LANES)
        assert used["cold"] <= max(total // 2, 1)
    for lane in LANES:
        slots.give(lane, used[lane])
    assert slots.in_flight() == 0


@given(limits, st.integers(2, 12), moves)
def test_hot_work_finds_a_place_beside_any_slower_work(
    limits: dict[str, int], total: int, moves: list[tuple[str, int]]
) -> None:
    slots = Slots(limits, total)
    for lane, n in moves:
        if lane != "hot" and n > 0:
            slots.take(lane, n)
    assert slots.free("hot") >= 1


@given(st.integers(1, 10), st.integers(1, 10))
def test_a_lane_alone_has_all_places(limit: int, total: int) -> None:
    assert Slots({"cold": limit}, total).free("cold") == min(limit, total)
