"""The plan of several models: each with weights and engines of its own, some of them on the same card."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from jobs.settings import load
from tests import model_shapes
from trilane.cli import main
from workers.planning import cards, plan
from workers.planning.plan import PlanRefused

BIG, SMALL = model_shapes.config("llama-3.1-8b"), model_shapes.config("smollm2-135m")
MODELS = f"""
model = "Big-8B"

[engine]
name = "vllm"
model_path = "{BIG}"

[models.Small]
model_path = "{SMALL}"
lanes = ["warm", "cold"]
"""
WORKERS = """
[[workers]]
lanes = ["hot"]
gpus = [0]

[[workers]]
lanes = ["cold", "warm"]
gpus = [0]
model = "Small"
"""
HALVES = """
[lane.hot.engine]
memory_share = 0.5

[lane.warm.engine]
memory_share = 0.4

[lane.cold.engine]
memory_share = 0.4
precision = "fp8"
"""
CROWDED = (
    "GPU 0: the shares of memory of hot and warm, cold of Small add to 1.35, 0.95 is the most:"
    " lower lane.<name>.engine.memory_share"
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two cards."""
    monkeypatch.setattr(plan, "found", lambda: cards.parse(["H100-80G:0-1"]))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def planned(*arguments: str) -> tuple[int, Any]:
    """The exit code of `trilane plan` and its JSON object."""
    result = run("plan", *arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def check(lanes: str, *gpus: int, model: str | None = None, **given: Any) -> None:
    """Judge a worker of these settings, as before its start."""
    settings = load(**given)
    plan.check(settings, settings.placement(lanes.split(), gpus, model))


def test_each_engine_has_its_model_s_weights_and_cache(config: Path) -> None:
    config.write_text(MODELS + HALVES + WORKERS)
    code, given = planned("--gpu", "H100-80G:0-2")
    placed = [(engine["model"], engine["lanes"], engine["gpus"]) for engine in given["engines"]]
    assert placed == [
        ("Big-8B", ["hot"], [0]),
        ("Big-8B", ["warm"], [1]),
        ("Big-8B", ["cold"], [2]),
        ("Small", ["warm", "cold"], [0]),
    ]
    assert (code, given["problems"]) == (0, [])
    hot, *_, small = (engine["memory_bytes"] for engine in given["engines"])
    assert hot["weights"] > 50 * small["weights"] > 50 * 100 * 2**20
    assert small["kv_cache"] + small["activations"] > 20 * 2**30
    assert hot["cap"] + small["cap"] == pytest.approx(0.9 * given["cards"][0]["memory_bytes"])


def test_an_entry_s_own_weights_count(config: Path) -> None:
    entry = f'[[workers]]\nlanes = ["hot"]\ngpus = [1]\nmodel_path = "{SMALL}"\n'
    config.write_text(MODELS + HALVES + entry)
    _, given = planned("--gpu", "H100-80G:0-4")
    weights = {tuple(one["gpus"]): one["memory_bytes"]["weights"] for one in given["engines"]}
    assert weights[(1,)] < min(weights[(0,)], weights[(2,)])


def test_shares_of_one_card_add_up_over_models(config: Path) -> None:
    config.write_text(MODELS + WORKERS)
    code, given = planned("--gpu", "H100-80G:0-2")
    assert (code, given["problems"][:1]) == (1, [CROWDED.replace("1.35", "1.7")])


def test_the_table_names_a_further_model(config: Path) -> None:
    config.write_text(MODELS + HALVES)
    shown = run("plan", "--gpu", "H100-80G:0-4").output
    assert "warm of Small" in shown
    assert "cold of Small: the cards are alike, and go 1 : 1 : 1 : 1 : 1 by rank" in shown


def test_where_there_is_no_card_for_a_further_model_it_says_so(config: Path) -> None:
    config.write_text(MODELS)
    shown = run("plan", "--gpu", "H100-80G:0")
    assert shown.exit_code == 1
    assert "warm, cold of Small on no card does not fit:" in shown.output


def test_a_further_model_s_configuration_is_named_in_the_settings(config: Path) -> None:
    config.write_text(MODELS + "[models.Elsewhere]\n")
    shown = run("plan", "--gpu", "H100-80G:0")
    assert shown.exit_code == 1
    assert "Elsewhere: no config.json of it lies here: name its folder, or the file, in the settings" in (
        shown.output
    )


@pytest.mark.parametrize(("lanes", "model"), [("hot", None), ("warm cold", "Small")])
def test_each_worker_of_a_crowded_card_is_stopped(config: Path, lanes: str, model: str | None) -> None:
    config.write_text(MODELS + WORKERS + HALVES.replace("0.5", "0.95"))
    with pytest.raises(PlanRefused) as refused:
        check(lanes, 0, model=model)
    assert str(refused.value) == CROWDED
    check(lanes, 1, model=model)  # no entry of the table: it may be on another machine
    config.write_text(MODELS + WORKERS + HALVES)
    check(lanes, 0, model=model)


def test_equal_entries_are_several_processes(config: Path) -> None:
    config.write_text(MODELS + HALVES + WORKERS + WORKERS[: WORKERS.index("[[", 10)])
    with pytest.raises(PlanRefused, match=r"GPU 0: .* hot and hot and warm, cold of Small add to 1\.4"):
        check("hot", 0)


def test_another_engine_s_worker_takes_no_share(config: Path) -> None:
    config.write_text(MODELS + WORKERS + 'engine = "sim"\n')
    check("hot", 0)
    _, given = planned("--gpu", "H100-80G:0-2")
    assert {engine["model"] for engine in given["engines"]} == {"Big-8B"}


def test_a_worker_answers_for_its_own_engine_alone(config: Path) -> None:
    """Beside a model that is too large for the card, but not by its share."""
    config.write_text(
        MODELS.replace(str(SMALL), str(model_shapes.config("llama-3.1-70b"))) + HALVES + WORKERS
    )
    check("hot", 0)
    with pytest.raises(PlanRefused, match=r"warm, cold of Small on GPU 0 .* does not fit:\n.*GiB in all"):
        check("warm cold", 0, model="Small")


def test_a_lane_s_checkpoint_is_no_further_model_s(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = model_shapes.config("llama-3.1-8b-w8a8")
    config.write_text(MODELS + f'[lane.cold.engine]\ncheckpoint = "{checkpoint}"\n')
    told = "lane.cold.engine.checkpoint replaces the weights of each model on the lane: take cold out of"
    for there in (["H100-80G:0-1"], []):
        monkeypatch.setattr(plan, "found", lambda there=there: cards.parse(there))
        check("cold", *range(len(there[:1])))
        with pytest.raises(PlanRefused, match=told):
            check("cold", *range(len(there[:1])), model="Small")


def test_a_worker_whose_plan_does_not_fit_does_not_start(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(MODELS + WORKERS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("TRILANE_DATABASE_URL", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("TRILANE_REDIS_URL", "redis://127.0.0.1:1")
    started = run("worker", "--lanes", "warm,cold", "--model", "Small")
    assert started.exit_code == 1
    assert started.output.startswith(
        "Error: GPU 0: the shares of memory of hot and warm, cold of Small add to"
    )
