"""Which lanes sit on which cards, and why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.policies import Scheduling, SpeculationPolicy
from workers.planning import cards, placement
from workers.planning.merging import merged
from workers.planning.placement import Group

Table = list[tuple[str, list[int]]]
ALL = Group(tuple(LANES))


def placed(*specs: str, lanes: Mapping[str, LanePolicy] = LANES, groups: Sequence[Group] = (ALL,)) -> Table:
    """Lanes, with the model where it is a further one, and the numbers of their cards."""
    given = placement.place(lanes, cards.parse(specs), groups)
    return [
        (
            " ".join([*part.group.lanes, *filter(None, [part.group.model])]),
            [card.index for card in part.cards],
        )
        for part in given
    ]


def with_engine(changes: dict[str, dict[str, object]]) -> dict[str, LanePolicy]:
    """The lanes with other engine policies."""
    return {
        name: replace(lane, engine=replace(lane.engine, **changes.get(name, {})))  # type: ignore[arg-type]  # named by the tests
        for name, lane in LANES.items()
    }


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (["A100-80G:0-7"], [("hot", [0, 1, 2, 3, 4]), ("warm", [5, 6]), ("cold", [7])]),
        (["A100-80G:0-2"], [("hot", [0]), ("warm", [1]), ("cold", [2])]),
        (["A100-80G:0", "H100-80G:1", "T4:2"], [("hot", [0]), ("warm", [1]), ("cold", [2])]),
        (["T4:0", "H100-80G:1", "A100-80G:2"], [("hot", [2]), ("warm", [1]), ("cold", [0])]),
        (["H100-80G:0-1", "T4:2"], [("hot", [0]), ("warm", [1]), ("cold", [2])]),
        (["A100-80G:0", "L4:1"], [("hot", [0]), ("warm cold", [1])]),
        (["T4:0"], [("hot warm cold", [0])]),
        ([], [("hot warm cold", [])]),
    ],
)
def test_each_lane_goes_where_it_is_best(specs: list[str], expected: Table) -> None:
    assert placed(*specs) == expected


def test_each_placement_says_why() -> None:
    mixed = placement.place(LANES, cards.parse(["A100-80G:0", "H100-80G:1", "T4:2"]), [ALL])
    assert [part.reason for part in mixed] == [
        "the fastest memory left with BF16",
        "FP8 runs natively here",
        "the smallest card that is left",
    ]
    alike = placement.place(LANES, cards.parse(["A100-80G:0-7"]), [ALL])
    assert {part.reason for part in alike} == {"the cards are alike, and go 5 : 2 : 1 by rank"}
    one = placement.place(LANES, cards.parse(["T4:0"]), [ALL])
    assert one[0].reason == "one engine for these lanes, for want of cards: no card left has BF16"


def test_what_the_operator_pins_stays_there() -> None:
    groups = [Group(("cold",), gpus=(0,)), Group(("warm",), gpus=(2,)), Group(("hot",))]
    assert placed("H100-80G:0-3", groups=groups) == [("hot", [1, 3]), ("warm", [2]), ("cold", [0])]


def test_pinned_lanes_may_share_an_engine() -> None:
    groups = [Group(("hot", "warm"), gpus=(1,)), Group(("cold",))]
    assert placed("A100-80G:0-1", groups=groups) == [("hot warm", [1]), ("cold", [0])]


SMALL = Group(("warm", "cold"), "Small")


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (
            ["A100-80G:0-7"],  # weights are 4, 2, 1 in the first model, 2, 1 of the same in the other
            [("hot", [0, 1, 2]), ("warm", [3]), ("cold", [4]), ("warm Small", [5, 6]), ("cold Small", [7])],
        ),
        (["A100-80G:0-3"], [("hot", [0]), ("warm cold", [1]), ("warm Small", [2]), ("cold Small", [3])]),
        (["A100-80G:0-2"], [("hot", [0]), ("warm cold", [1]), ("warm cold Small", [2])]),
        (["A100-80G:0-1"], [("hot warm cold", [0]), ("warm cold Small", [1])]),
        (["A100-80G:0"], [("hot warm cold", [0]), ("warm cold Small", [])]),
    ],
)
def test_each_model_has_engines_of_its_own(specs: list[str], expected: Table) -> None:
    assert placed(*specs, groups=[ALL, SMALL]) == expected


def test_two_models_share_a_card_where_their_shares_of_memory_allow_it() -> None:
    lanes = with_engine({name: {"memory_share": 0.4} for name in LANES})
    given = placement.place(lanes, cards.parse(["H100-80G:0"]), [ALL, SMALL])
    assert [(part.group.lanes, part.group.model) for part in given] == [
        (ALL.lanes, None),
        (SMALL.lanes, "Small"),
    ]
    assert {part.reason for part in given} == {"shares the card: the shares of memory add to 0.8"}
    third = [ALL, SMALL, replace(SMALL, model="Third")]
    assert [bool(numbers) for _, numbers in placed("H100-80G:0", lanes=lanes, groups=third)] == [
        True,
        True,
        False,
    ]


def test_tensor_parallel_engines_take_cards_of_one_kind() -> None:
    lanes = with_engine({"hot": {"tensor_parallel": 2}})
    specs = ["A100-80G:0", "L4:1", "A100-80G:2", "T4:3"]
    assert placed(*specs, lanes=lanes) == [("hot", [0, 2]), ("warm", [1]), ("cold", [3])]


def test_a_lane_that_finds_no_bundle_has_no_card() -> None:
    lanes = {"hot": with_engine({"hot": {"tensor_parallel": 2}})["hot"]}
    (part,) = placement.place(lanes, cards.parse(["A100-80G:0", "T4:1"]), [Group(("hot",))])
    assert (part.cards, part.reason) == ((), "no card is left, or no 2 of one kind")


def test_small_shares_keep_engines_apart_on_one_card() -> None:
    lanes = with_engine(
        {"hot": {"memory_share": 0.4}, "warm": {"memory_share": 0.3}, "cold": {"memory_share": 0.2}}
    )
    given = placement.place(lanes, cards.parse(["H100-80G:0"]), [ALL])
    assert [part.group.lanes for part in given] == [("hot",), ("warm",), ("cold",)]
    assert {part.reason for part in given} == {"shares the card: the shares of memory add to 0.9"}


def test_one_lane_s_engine_is_its_own() -> None:
    assert merged([LANES["warm"]]) is LANES["warm"].engine


def test_an_engine_for_several_lanes_has_the_fastest_s_model_and_the_greediest_s_room() -> None:
    together = merged([LANES["hot"], LANES["warm"], LANES["cold"]])
    assert together.precision is LANES["hot"].engine.precision
    assert (together.sequences, together.batched_tokens, together.memory_share) == (16, 8_192, 0.85)
    assert together.scheduling is Scheduling.PRIORITY


def test_speculation_stays_where_all_lanes_ask_for_it() -> None:
    speculation = SpeculationPolicy()
    warm = with_engine({"warm": {"speculation": speculation}, "cold": {"speculation": speculation}})
    assert merged([warm["warm"], warm["cold"]]).speculation == speculation
    assert merged([warm["hot"], warm["warm"]]).speculation is None


def test_a_cache_set_by_hand_stays_where_all_lanes_set_it() -> None:
    lanes = with_engine({"warm": {"kv_cache_gib": 2.0}, "cold": {"kv_cache_gib": 3.0}})
    assert merged([lanes["warm"], lanes["cold"]]).kv_cache_gib == 3
    assert merged([lanes["hot"], lanes["warm"]]).kv_cache_gib is None
