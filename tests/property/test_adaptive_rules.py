"""A lane's limit and window whatever is seen: within their bounds, and never up, down and up again soon."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.domain.adaptive import REGROW_AFTER_S, UNUSED_S, WINDOW_AFTER_S, Limit, Look, Window

looks = st.builds(
    Look,
    taken=st.integers(0, 20),
    full=st.booleans(),
    batch=st.floats(0, 2),
    slowness=st.none() | st.floats(0, 3),
    engine_waiting=st.integers(0, 2),
    kv_usage=st.floats(0, 1),
    preempted=st.booleans(),
    over_memory=st.booleans(),
)
# Long spells of one signal, as they come, and wild changes.
signals = st.lists(st.tuples(looks, st.integers(1, 200)), min_size=1, max_size=12)
bounds = st.lists(st.integers(1, 40), min_size=3, max_size=3).map(sorted)
EVERY_S = st.sampled_from([0.1, 0.5, 2.0])
HYSTERESIS_S = min(REGROW_AFTER_S, UNUSED_S)


def run(moving: Limit | Window, signal: list[tuple[Look, int]], every_s: float) -> list[tuple[float, int]]:
    """The values after each move, with their times."""
    found, now_s = [(0.0, moving.value)], 0.0
    for look, times in signal:
        for _ in range(times):
            now_s += every_s
            before = moving.value
            cause = moving.look(now_s, look)
            assert (cause is not None) == (moving.value != before)
            if cause:
                found.append((now_s, moving.value))
    return found


def up_down_ups(found: list[tuple[float, int]]) -> list[float]:
    """The seconds from the last up before some downs to the first after them, each time."""
    gaps, last_up_s, down = [], float("-inf"), False
    for (_, before), (at_s, value) in pairwise(found):
        if value < before:
            down = True
            continue
        if down:
            gaps.append(at_s - last_up_s)
        last_up_s, down = at_s, False
    return gaps


@settings(deadline=None, max_examples=50)
@given(bounds, signals, EVERY_S)
def test_a_limit_stays_within_its_bounds_and_does_not_flap(
    bounds: list[int], signal: list[tuple[Look, int]], every_s: float
) -> None:
    least, start, most = bounds
    found = run(Limit(least, start, most), signal, every_s)
    assert all(least <= value <= most for _, value in found)
    assert all(gap_s >= HYSTERESIS_S - 1e-6 for gap_s in up_down_ups(found))


@settings(deadline=None, max_examples=50)
@given(bounds, looks, EVERY_S)
def test_a_steady_signal_moves_a_limit_one_way_only(bounds: list[int], look: Look, every_s: float) -> None:
    found = run(Limit(*bounds), [(look, 4_000)], every_s)
    assert len({later > earlier for (_, earlier), (_, later) in pairwise(found)}) <= 1


@settings(deadline=None, max_examples=50)
@given(bounds, st.integers(2, 30), st.integers(1, 40))
def test_a_saturated_engine_is_held_at_what_it_serves_within_the_objective(
    bounds: list[int], knee: int, burst: int
) -> None:
    """P95 is at the objective with a quarter more than `knee` jobs; there is work for `burst`."""
    least, start, most = bounds
    limit, found = Limit(least, start, most), [(0.0, start)]
    for n in range(3_000):
        running = min(limit.value, burst)
        look = Look(running, limit.value <= burst, running / limit.value, 0.8 * running / knee)
        if limit.look(n / 2, look):
            found.append((n / 2, limit.value))
    assert all(gap_s >= HYSTERESIS_S for gap_s in up_down_ups(found))
    settled = [value for at_s, value in found if at_s > 600] or [found[-1][1]]
    assert all(min(value, burst) <= max(knee * 1.25 + 1, least) for value in settled)
    assert all(value >= min(int(knee * 0.9), burst, most) for value in settled)


@settings(deadline=None, max_examples=50)
@given(bounds, signals, EVERY_S)
def test_a_window_stays_within_its_bounds_and_rests_between_moves(
    bounds: list[int], signal: list[tuple[Look, int]], every_s: float
) -> None:
    least, _, most = bounds
    found = run(Window(least, most), signal, every_s)
    assert all(least <= value <= most for _, value in found)
    assert all(
        later_s - earlier_s >= WINDOW_AFTER_S - 1e-6 for (earlier_s, _), (later_s, _) in pairwise(found[1:])
    )


@settings(deadline=None, max_examples=50)
@given(looks, EVERY_S)
def test_a_steady_signal_moves_a_window_one_way_only(look: Look, every_s: float) -> None:
    found = run(Window(50, 200), [(look, 1_000)], every_s)
    assert len({later > earlier for (_, earlier), (_, later) in pairwise(found)}) <= 1
    near = run(Window(50, 200), [(replace(look, slowness=0.95), 1_000)], every_s)
    assert near == [(0.0, 50)]
