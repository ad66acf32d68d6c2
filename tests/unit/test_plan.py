"""Whole plans: what fits, what does not, what to change, and the check before a worker starts."""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs import settings as configuration
from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.policies import EnginePolicy, Precision
from jobs.settings import Settings
from tests.model_shapes import config, shape
from workers.planning import cards, engine_plan, plan
from workers.planning.checkpoint import StoredFormat
from workers.planning.model_shape import ModelShape
from workers.planning.placement import Group
from workers.planning.plan import Plan, PlanRefused

FP8_COLD = {"cold": {"engine": {"precision": "fp8"}}}


def lanes_with(changes: Mapping[str, Any]) -> Mapping[str, LanePolicy]:
    """The lanes under the overrides that a `trilane.toml` may hold."""
    return configuration.load(lane=dict(changes)).lanes


def made(model: str, *specs: str, lane: Mapping[str, Any] | None = None, **given: Any) -> Plan:
    """A plan of one public model for all lanes."""
    return plan.make(lanes_with(lane or {}), cards.parse(specs), lambda _: shape(model), **given)


def remedy(line: str) -> dict[str, Any]:
    """The overrides that a remedy names, alternatives and remarks left out."""
    settings = [part.split(" (")[0] for part in line.replace(", together with ", " and ").split(" and ")]
    return dict(tomllib.loads("\n".join(part.split(" with ")[0] for part in settings))["lane"])


def stored(model: str, policy: EnginePolicy) -> ModelShape:
    """The model's shape, in a checkpoint of the policy's precision where that needs one."""
    bits = {Precision.INT8: 8, Precision.INT4: 4}.get(policy.precision)
    format_ = StoredFormat("gptq", bits, policy.precision) if bits else None
    return replace(shape(model), stored=format_ or shape(model).stored)


def test_eight_a100_hold_an_8b_model_thrice() -> None:
    given = made("llama-3.1-8b", "A100-80G:0-7", lane=FP8_COLD)
    assert given.fits
    hot, warm, cold = given.engines
    assert [engine.where for engine in given.engines] == [
        "GPU 0-4 (A100-80G)",
        "GPU 5-6 (A100-80G)",
        "GPU 7 (A100-80G)",
    ]
    assert [engine.verdict.title for engine in given.engines if engine.verdict] == [
        "bf16",
        "fp8 (weight-only)",
        "fp8 (weight-only)",
    ]
    assert hot.memory and cold.memory
    assert hot.memory.sequences > 64
    assert cold.memory.sequences == 7
    assert (hot.limits, warm.limits, cold.limits) == ({"hot": 8}, {"warm": 4}, {"cold": 2})
    assert "7 of 8 sequences fit at full length" in cold.notes[0]
    assert hot.least_step_ms == pytest.approx(16.06e9 / 2_039e9 * 1e3, rel=0.01)


def test_int8_without_a_checkpoint_is_refused_with_the_nearest() -> None:
    given = made("llama-3.1-8b", "A100-80G:0-7")
    assert not given.fits
    (problem,) = given.engines[2].problems
    assert problem.startswith("int8 needs a checkpoint that is stored so")
    assert problem.endswith('the nearest legal: lane.cold.engine.precision = "fp8" (weight-only here)')


def test_a_mixed_box_puts_each_lane_on_its_card() -> None:
    lane = {"cold": {"engine": {"precision": "int8", "memory_share": 0.9}, "max_model_len": 8_192}}
    shapes = {"int8": shape("llama-3.1-8b-w8a8")}
    given = plan.make(
        lanes_with(lane),
        cards.parse(["A100-80G:0", "H100-80G:1", "T4:2"]),
        lambda policy: shapes.get(policy.precision, shape("llama-3.1-8b")),
    )
    assert given.fits
    titles = [
        (engine.lanes, engine.where, engine.verdict and engine.verdict.title) for engine in given.engines
    ]
    assert titles == [
        (("hot",), "GPU 0 (A100-80G)", "bf16"),
        (("warm",), "GPU 1 (H100-80G)", "fp8"),
        (("cold",), "GPU 2 (T4)", "int8"),
    ]


def test_a_single_t4_serves_a_small_model_to_all_lanes() -> None:
    (engine,) = (given := made("smollm2-135m", "T4:0")).engines
    assert given.fits
    assert engine.lanes == ("hot", "warm", "cold")
    assert engine.verdict and engine.verdict.title == "fp16"
    assert engine.max_model_len == 8_192
    assert "the model takes 8,192 tokens: the lane's 32,768 are cut to that" in engine.notes
    assert "this card computes fastest in INT8: lane.hot.engine.checkpoint may be a W8A8 one" in engine.notes
    assert "cold: prompts of 3,072 tokens on average want a lane and a card of their own" in engine.notes


def test_a_single_t4_is_too_small_for_8b_in_fp16() -> None:
    (engine,) = made("llama-3.1-8b", "T4:0").engines
    (problem,) = engine.problems
    assert problem == (
        "fp16 weights 15.0 GiB; activations, graphs and context 2.0 GiB; 1 x 32,768 tokens of cold 4.0 GiB:"
        " 21.0 GiB in all, the cap is 12.8 GiB (0.85 of T4)"
    )
    assert [line.split(" = ")[0] for line in engine.remedies] == [
        "lane.hot.engine.precision",
        "lane.hot.engine.precision",
        "lane.hot.engine.tensor_parallel",
    ]
    assert "tensor_parallel = 2" in engine.remedies[-1]


@pytest.mark.parametrize(
    ("model", "card", "lane"),
    [
        ("llama-3.1-8b", "L4", "hot"),
        ("llama-3.1-8b", "L4", "warm"),
        ("llama-3.1-70b", "H100-80G", "warm"),
        ("llama-3.1-70b", "H200-141G", "hot"),
        ("qwen2.5-7b", "T4", "hot"),
        ("mixtral-8x7b", "A100-80G", "hot"),
        ("deepseek-v2-lite", "A100-40G", "hot"),
        ("deepseek-v3", "B200", "warm"),
        ("gemma-2-9b", "L4", "hot"),
    ],
)
def test_remedies_cure(model: str, card: str, lane: str) -> None:
    """Each change that is named makes a plan fit, on as many cards as it asks for."""
    sick = plan.make({lane: LANES[lane]}, cards.parse([f"{card}:0"]), lambda _: shape(model))
    for line in sick.engines[0].remedies:
        changes = remedy(line)
        cured = lanes_with(changes)[lane]
        specs = [f"{card}:0-{cured.engine.tensor_parallel - 1}"]
        cure = plan.make({lane: cured}, cards.parse(specs), lambda policy: stored(model, policy))
        assert cure.fits, line
    assert sick.fits or sick.engines[0].remedies


@pytest.mark.parametrize(
    ("gib", "told"), [(0.25, "kv_cache_gib 0.25 is too little"), (60, "76.5 GiB in all, the cap is 68.0 GiB")]
)
def test_a_cache_set_by_hand_may_be_too_small_or_too_large(gib: float, told: str) -> None:
    lanes = {"hot": lanes_with({"hot": {"engine": {"kv_cache_gib": gib}}})["hot"]}
    given = plan.make(lanes, cards.parse(["A100-80G:0"]), lambda _: shape("llama-3.1-8b"))
    assert told in given.engines[0].problems[0]
    assert given.engines[0].remedies[0] == "lane.hot.engine.kv_cache_gib left out"


def test_a_draft_model_takes_room() -> None:
    """Beside 8B in BF16 an L40S has room for many sequences with a draft of 135M, for few with one of 8B."""
    shapes = {"small": shape("smollm2-135m"), "big": shape("llama-3.1-8b"), None: shape("llama-3.1-8b")}
    for draft, many in (("small", True), ("big", False)):
        speculation = {"method": "draft_model", "draft_model": draft}
        lanes = {"hot": lanes_with({"hot": {"engine": {"speculation": speculation}}})["hot"]}
        given = plan.make(lanes, cards.parse(["L40S:0"]), lambda policy: shapes[policy.checkpoint])
        assert given.engines[0].memory and (given.engines[0].memory.sequences > 16) == many


def test_a_lane_with_cards_of_two_kinds_is_planned_for_each() -> None:
    given = plan.make(
        {"hot": LANES["hot"]},
        cards.parse(["A100-80G:0", "L4:1", "A100-80G:3"]),
        lambda _: shape("smollm2-135m"),
    )
    assert [engine.where for engine in given.engines] == ["GPU 0, 3 (A100-80G)", "GPU 1 (L4)"]


def test_shares_of_one_card_must_leave_room_for_each_other() -> None:
    groups = [Group((lane,), gpus=(gpu,)) for lane, gpu in zip(LANES, (0, 0, 1), strict=True)]
    given = made("smollm2-135m", "H100-80G:0-1", groups=groups)
    assert given.problems == (
        "GPU 0: the shares of memory of hot and warm add to 1.7, 0.95 is the most:"
        " lower lane.<name>.engine.memory_share",
    )
    halves = {name: {"engine": {"memory_share": 0.45}} for name in ("hot", "warm")}
    assert not made("smollm2-135m", "H100-80G:0-1", groups=groups, lane=halves).problems


def test_a_lane_without_a_card_says_so() -> None:
    (engine,) = made("smollm2-135m").engines
    assert engine.where == "no card"
    assert engine.problems[0].startswith("no card: one engine for these lanes")


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel 2 needs as many cards of one kind, there are 1"),
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype fp8 needs compute capability 8.0, the card has 7.5"),
        ({"precision": "bf16"}, 'the nearest legal: lane.hot.engine.precision = "fp16"'),
    ],
)
def test_what_a_card_cannot_do_is_told(engine: dict[str, Any], told: str) -> None:
    lanes = {"hot": lanes_with({"hot": {"engine": engine}})["hot"]}
    given = plan.make(
        lanes, cards.parse(["T4:0"]), lambda _: shape("llama-3.1-8b"), [Group(("hot",), gpus=(0,))]
    )
    assert any(told in problem for problem in given.engines[0].problems)


def test_attention_heads_are_split_evenly() -> None:
    lanes = {"hot": lanes_with({"hot": {"engine": {"tensor_parallel": 2}}})["hot"]}
    given = plan.make(lanes, cards.parse(["T4:0-1"]), lambda _: shape("smollm2-135m"))
    assert "does not divide the 9 attention heads" in given.engines[0].problems[0]


@pytest.mark.parametrize(
    ("tokens", "limit"), [(1, 8), (511, 8), (512, 4), (2_048, 4), (2_049, 2), (30_000, 2)]
)
def test_the_starting_limit_follows_the_mean_prompt(tokens: int, limit: int) -> None:
    assert engine_plan.starting_limit(tokens) == limit


def test_a_mean_given_by_hand_wins() -> None:
    given = made("llama-3.1-8b", "A100-80G:0-2", lane=FP8_COLD, mean_prompt_tokens={"hot": 900, "warm": 300})
    assert [engine.limits for engine in given.engines] == [{"hot": 4}, {"warm": 8}, {"cold": 2}]


def test_typical_prompts_are_the_middle_of_a_lane_s_lengths() -> None:
    assert [engine_plan.typical_prompt(LANES, name) for name in LANES] == [256, 1_280, 3_072]


def settings_for(model: str, **given: Any) -> Settings:
    return configuration.load(engine={"model_path": config(model)}, **given)


def check(settings: Settings, lane: str, *gpus: int, model: str | None = None) -> None:
    """Judge a worker of one lane, as before its start."""
    plan.check(settings, settings.placement([lane], gpus, model))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives this machine cards."""
    return lambda *specs: monkeypatch.setattr(plan, "found", lambda: cards.parse(specs))


def test_a_plan_that_does_not_fit_stops_the_worker_with_its_message(machine: Any) -> None:
    machine("A100-80G:0", "T4:1")
    with pytest.raises(PlanRefused) as refused:
        check(settings_for("llama-3.1-8b"), "hot", 1)
    lines = str(refused.value).splitlines()
    assert lines[0] == "hot on GPU 1 (T4) does not fit:"
    assert "GiB in all, the cap is 12.8 GiB" in lines[1]
    assert lines[2] == "  change one of:"
    check(settings_for("llama-3.1-8b"), "hot", 0)


def test_a_worker_without_numbers_is_checked_on_the_first_card(machine: Any) -> None:
    machine("T4:0", "A100-80G:1")
    with pytest.raises(PlanRefused, match="hot on GPU 0"):
        check(settings_for("llama-3.1-8b"), "hot")


def test_a_card_that_is_not_there_is_refused(machine: Any) -> None:
    machine("T4:0-1")
    with pytest.raises(PlanRefused, match="GPU 5: there is none; there are 0, 1"):
        check(settings_for("smollm2-135m"), "hot", 5)


def test_an_unknown_model_is_judged_by_the_card_alone(machine: Any) -> None:
    machine("T4:0")
    check(configuration.load(model="somebody/s-model"), "hot", 0)
    lane = {"hot": {"engine": {"precision": "bf16"}}}
    with pytest.raises(PlanRefused, match=r"bf16 needs compute capability 8\.0"):
        check(configuration.load(model="somebody/s-model", lane=lane), "hot", 0)


def test_a_config_that_cannot_be_read_is_the_engine_s_to_refuse(machine: Any, tmp_path: Path) -> None:
    machine("T4:0")
    (tmp_path / "config.json").write_text("{}")
    check(configuration.load(engine={"model_path": tmp_path}), "hot", 0)


def test_without_cards_only_a_named_checkpoint_is_judged(machine: Any) -> None:
    machine()
    for lane in LANES:
        check(settings_for("llama-3.1-8b"), lane)
    wrong = {"cold": {"engine": {"checkpoint": str(config("llama-3.1-8b"))}}}
    with pytest.raises(PlanRefused, match="cold: int8 needs a checkpoint that is stored so"):
        check(settings_for("llama-3.1-8b", lane=wrong), "cold")
    right = {"cold": {"engine": {"checkpoint": str(config("llama-3.1-8b-w8a8"))}}}
    check(settings_for("llama-3.1-8b", lane=right), "cold")
