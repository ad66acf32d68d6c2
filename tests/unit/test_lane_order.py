"""The poll order: strict by rank while nobody is overdue, and nobody waits more than ten admissions."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.lanes import BANDS
from workers.lane_order import MAX_WAIT, LaneCycle, LaneOrder

LANES = ("hot", "warm", "cold")
QUEUES = [f"{lane}.{band}" for lane in reversed(LANES) for band in reversed(BANDS)]
RANKED = [f"{lane}.{band}" for lane in LANES for band in BANDS]


def test_by_rank_lanes_before_bands() -> None:
    assert LaneOrder(LANES, lambda _lane: 1).order(QUEUES) == RANKED


def test_only_lanes_with_a_free_slot() -> None:
    order = LaneOrder(LANES, {"hot": 0, "warm": 2, "cold": 1}.__getitem__)
    assert order.order(QUEUES) == RANKED[3:]
    assert LaneOrder(LANES, lambda _lane: 0).order(QUEUES) == []


def test_an_overdue_lane_is_first_once_then_strict_order_again() -> None:
    order = LaneOrder(LANES, lambda _lane: 1)
    for _ in range(9):
        assert order.order(QUEUES)[0].startswith("hot.")
        order.admitted(order.order(QUEUES)[0], 1)
    assert order.order(QUEUES)[0] == "warm.urgent"
    order.admitted("warm.urgent", 1)
    assert order.order(QUEUES)[0] == "cold.urgent"
    order.admitted("cold.urgent", 1)
    assert order.order(QUEUES)[0].startswith("hot.")


def test_a_lane_polled_in_vain_waits_anew() -> None:
    order = LaneOrder(LANES, lambda _lane: 1)
    for _ in range(10):
        order.order(QUEUES)
        order.admitted("hot.urgent", 1)  # the tenth comes although warm and cold were polled before
    assert order.order(QUEUES)[:3] == RANKED[:3]


def test_more_of_a_queue_follows_until_one_behind_it_is_overdue() -> None:
    order = LaneOrder(["hot", "warm"], lambda _lane: 99)
    order.order(QUEUES)
    order.admitted("hot.urgent", 1)
    assert order.more == 8  # the bands behind it wait nine turns at most
    order.admitted("hot.urgent", 8)
    assert order.more == 0
    order.order(QUEUES)
    order.admitted("hot.normal", 1)  # out of its rank: once, and urgent is asked again
    assert order.more == 0


def test_a_lane_that_came_out_of_its_rank_gets_no_more() -> None:
    order = LaneOrder(LANES, lambda _lane: 99)
    order.order(QUEUES)
    order.admitted("hot.urgent", 9)
    assert order.order(QUEUES)[0] == "warm.urgent"
    order.admitted("warm.urgent", 1)
    assert order.more == 0


def test_further_models_take_turns_within_their_band() -> None:
    order = LaneOrder(["hot"], lambda _lane: 1)
    queues = ["hot.urgent", "hot.urgent.second", "hot.low.second"]
    served = Counter[str]()
    for _ in range(10):
        first = order.order(queues)[0]
        order.admitted(first, 1)
        served[first] += 1
    assert served == {"hot.urgent": 5, "hot.urgent.second": 4, "hot.low.second": 1}


def test_the_cycle_asks_at_each_poll() -> None:
    answers = [["hot.low", "hot.urgent"], ["hot.urgent"], []]
    remaining = iter(answers)
    cycle = LaneCycle(lambda _queues: next(remaining), {"hot.low": 3}.__getitem__)
    cycle.update(["hot.urgent", "hot.low"])
    polls = [(cycle.consume(2), cycle.partial, cycle.rotate("hot.low")) for _ in answers]
    assert cycle.more() == ("hot.low", 3)
    assert polls == [(answers[0], False, "hot.low"), (answers[1], True, "hot.low"), ([], True, "hot.low")]


STEP = st.tuples(
    st.dictionaries(st.sampled_from(RANKED), st.integers(1, 30), max_size=3),  # arrivals: jobs in a message
    st.sets(st.sampled_from(LANES)),  # lanes without a free slot
)


def count_admissions(
    passed: Counter[str], served: str, taken: int, waiting: set[str], full: set[str]
) -> None:
    for lane in LANES:
        if lane == served or lane not in waiting:
            passed[lane] = 0
        elif lane not in full:
            passed[lane] += taken
            assert passed[lane] <= MAX_WAIT


@given(st.lists(STEP, min_size=1, max_size=120), st.booleans())
def test_no_lane_waits_longer_than_ten_admissions(
    steps: list[tuple[dict[str, int], set[str]]], always_busy: bool
) -> None:
    full: set[str] = set()
    order = LaneOrder(LANES, lambda lane: 0 if lane in full else 8)
    waiting: dict[str, list[int]] = {queue: [] for queue in RANKED}
    passed = Counter[str]()
    for arrivals, now_full in steps:
        full = now_full
        for queue, jobs in arrivals.items():
            waiting[queue].append(jobs)
        if always_busy:
            waiting["hot.urgent"].append(1)
        polled = order.order(QUEUES)
        found = [queue for queue in polled if waiting[queue]]
        if not found:
            continue
        queue = found[0]
        messages = [waiting[queue].pop()]
        for position, message in enumerate(messages):
            taken = order.room(queue, min(message, 8))
            assert int(position == 0) <= taken <= min(message, 8)
            if message > taken:
                waiting[queue].append(message - taken)
            if taken:
                order.admitted(queue, taken)
            waiting_lanes = {name.split(".")[0] for name, left in waiting.items() if left}
            count_admissions(passed, queue.split(".")[0], taken, waiting_lanes, full)
            if position == 0:  # what follows without a poll is fetched at once, whatever its size is
                messages += [waiting[queue].pop() for _ in range(min(order.more, len(waiting[queue])))]


@given(st.lists(st.sampled_from(BANDS), min_size=1, max_size=60))
def test_no_band_starves_in_its_lane(arrivals: list[str]) -> None:
    order = LaneOrder(["warm"], lambda _lane: 1)
    waiting = Counter(dict.fromkeys(arrivals, 100))
    passed = Counter[str]()
    for _ in range(60):
        band = next(q.split(".")[1] for q in order.order(QUEUES) if waiting[q.split(".")[1]])
        waiting[band] -= 1
        order.admitted(f"warm.{band}", 1)
        for other in BANDS:
            passed[other] = passed[other] + 1 if waiting[other] and other != band else 0
            assert passed[other] <= MAX_WAIT


@given(st.lists(st.sampled_from(LANES), max_size=8))
def test_strict_while_nobody_is_overdue(served: list[str]) -> None:
    order = LaneOrder(LANES, lambda _lane: 1)
    for lane in served:
        order.order(QUEUES)
        order.admitted(f"{lane}.urgent", 1)
    assert [queue for queue in order.order(QUEUES) if queue.endswith(".urgent")] == [
        f"{lane}.urgent" for lane in LANES
    ]
