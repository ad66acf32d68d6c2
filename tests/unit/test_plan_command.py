"""`trilane plan` as an operator sees it."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.model_shapes import config
from trilane.commands.plan import plan
from workers.planning import cards

LLAMA = str(config("llama-3.1-8b"))
W8A8 = str(config("llama-3.1-8b-w8a8"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own, on a machine without cards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cards, "load_nvml", lambda: None)
    return tmp_path


def run(*arguments: str) -> Result:
    """The command's result."""
    return CliRunner().invoke(plan, arguments)


def as_json(*arguments: str) -> tuple[int, Any]:
    """The exit code and the JSON object."""
    result = run(*arguments, "--json")
    return result.exit_code, json.loads(result.stdout)


def configured(folder: Path, text: str) -> None:
    (folder / "trilane.toml").write_text(text)


def test_a_plan_that_fits_exits_with_0(elsewhere: Path) -> None:
    configured(elsewhere, f'[lane.cold.engine]\ncheckpoint = "{W8A8}"\n')
    code, given = as_json("--gpu", "A100-80G:0-7", "--model", LLAMA)
    assert (code, given["fits"]) == (0, True)
    cold = given["engines"][2]
    assert (cold["lanes"], cold["gpus"], cold["precision"], cold["weight_only"]) == (
        ["cold"],
        [7],
        "int8",
        False,
    )
    memory = cold["memory_bytes"]
    parts = ("weights", "activations", "cuda_graphs", "context", "kv_cache")
    assert sum(memory[part] for part in parts) == memory["cap"] == 40 * 2**30
    assert cold["sequences_fit"] == memory["kv_cache"] // memory["one_sequence"]
    assert given["cards"][0] == {
        "index": 0,
        "name": "A100-80G",
        "memory_bytes": 80 * 2**30,
        "compute_capability": "8.0",
        "bandwidth_gb_s": 2_039,
    }


def test_a_plan_that_does_not_fit_exits_with_1_and_says_what_to_change() -> None:
    result = run("--gpu", "T4:0", "--model", LLAMA)
    assert result.exit_code == 1
    assert "hot, warm, cold on GPU 0 (T4) does not fit:" in result.output
    assert "change one of:\n    lane.hot.engine.precision = " in result.output
    assert "such sequences that fit" in result.output


def test_a_lane_without_its_card_is_told_too(elsewhere: Path) -> None:
    configured(elsewhere, "[lane.hot.engine]\ntensor_parallel = 4\n")
    code, given = as_json("--gpu", "A100-80G:0-1", "--model", LLAMA)
    assert code == 1
    assert given["engines"][0]["memory_bytes"] == {}
    assert run("--gpu", "A100-80G:0-1", "--model", LLAMA).exit_code == 1


def test_the_workers_table_decides_where_lanes_sit(elsewhere: Path) -> None:
    configured(
        elsewhere,
        '[[workers]]\nlanes = ["hot"]\ngpus = [1]\n[[workers]]\nlanes = ["warm"]\ngpus = [0]\n'
        '[[workers]]\nlanes = ["cold"]\nengine = "llamacpp"\n',
    )
    code, given = as_json("--gpu", "H100-80G:0-1", "--model", LLAMA)
    assert code == 0
    assert [(engine["lanes"], engine["gpus"]) for engine in given["engines"]] == [
        (["hot"], [1]),
        (["warm"], [0]),
    ]
    assert given["engines"][0]["reason"] == "pinned by the operator"


def test_without_any_lane_on_a_card_there_is_nothing_to_plan(elsewhere: Path) -> None:
    configured(elsewhere, '[[workers]]\nlanes = ["hot", "warm", "cold"]\n')
    result = run("--gpu", "T4:0", "--model", LLAMA)
    assert result.exit_code == 1
    assert "nothing to plan" in result.output


def test_mean_lengths_move_the_starting_limits() -> None:
    _, given = as_json("--gpu", "A100-80G:0-2", "--model", LLAMA, "--mean-prompt-tokens", "hot=600")
    assert given["engines"][0]["starting_limits"] == {"hot": 4}


@pytest.mark.parametrize("mean", ["hot", "hot=", "hot=0", "hot=many", "tepid=4"])
def test_a_mean_that_is_none_is_refused(mean: str) -> None:
    result = run("--gpu", "T4:0", "--model", LLAMA, "--mean-prompt-tokens", mean)
    assert result.exit_code == 2
    assert "give a lane and tokens, as in hot=180" in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--model", LLAMA], "no card is found on this machine: name some, as in --gpu T4:0"),
        (["--gpu", "T4"], "give a card and its number"),
        (["--gpu", "T4:0", "--model", "my-model"], "my-model: no config.json of it lies here"),
    ],
)
def test_what_is_missing_is_told_with_its_remedy(arguments: list[str], told: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert told in result.output
