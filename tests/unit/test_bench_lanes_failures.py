"""The lanes' benchmark where engines fail: it says so, and ends with status 1."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from jobs.domain import tokens
from jobs.domain.outcomes import Outcome, Rejected
from jobs.domain.requests import GenerationRequest
from jobs.settings import load
from trilane.bench import lanes_engines, vllm_on_cpu
from trilane.bench.lanes_engines import Engines
from trilane.bench.lanes_plan import Lanes
from trilane.bench.lanes_prompts import Prompts
from trilane.cli import main
from trilane.stack import StackError
from workers.engines.sim import SimEngine
from workers.engines.sim_curves import LongWork
from workers.planning import cards

TOO_LONG = Rejected("prompt_too_long", "the prompt is [far] too long")

Fault = Callable[[GenerationRequest], Outcome | None]


def fault_over(least: int, most: int) -> Fault:
    """Refuses prompts of these lengths, in tokens."""
    return lambda request: TOO_LONG if least <= tokens.estimate(request.messages) <= most else None


def run_with(fault: Fault, monkeypatch: pytest.MonkeyPatch, *options: str) -> Result:
    """The command's run on simulated engines with this fault."""

    simulated = lanes_engines.simulated(LongWork.STEP)

    def make(lanes: Lanes, card: int) -> SimEngine:
        engine = simulated.make(lanes, card)
        assert isinstance(engine, SimEngine)
        return SimEngine("sim", engine.profile, fault=fault, now=asyncio.get_running_loop().time)

    monkeypatch.setattr(lanes_engines, "simulated", lambda _: Engines(make, Prompts(), measured=False))
    arguments = ["bench", "lanes", "--requests", "40", "--cards", "2", *options]
    return CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})


def test_failures_are_told_by_code_and_message_and_the_status_is_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    run = run_with(fault_over(1_000, 2_048), monkeypatch, "--json", str(path))
    assert run.exit_code == 1, run.output
    report = json.loads(path.read_text())
    failed = report["failures"][0]["requests"]
    tickets = next(part["requests"] for part in report["work"] if part["kind"] == "ticket")
    assert 0 < failed < tickets
    for row in report["rows"]:
        stage = f"{row['queue']}, {row['precision']} precision, load {row['load']}"
        told = {"stage": stage, "code": TOO_LONG.code, "message": TOO_LONG.message, "requests": failed}
        assert told in report["failures"]
        assert f"FAILED {failed} of {stage}: {TOO_LONG.code}: {TOO_LONG.message}" in run.output
        assert row["failures"] == {TOO_LONG.code: failed}
        assert row["completed"] == 40 - failed
        assert row["kinds"]["ticket"]["completed"] == tickets - failed
        assert row["kinds"]["ticket"]["total_ms"]["p50"] > 100


def test_a_run_in_which_a_part_gets_no_answer_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_with(fault_over(2_049, 10_000), monkeypatch)
    assert run.exit_code == 1
    (told,) = (line for line in run.output.splitlines() if line.startswith("Error: "))
    assert told.startswith("Error: shared card: cold alone: all ")
    assert told.endswith(f"requests failed: {TOO_LONG.code}: {TOO_LONG.message}")


def test_vllm_without_its_package_or_a_model_tells_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vllm_on_cpu, "find_spec", lambda name: None)
    run = CliRunner().invoke(main, ["bench", "lanes", "--engine", "vllm"])
    assert run.exit_code == 1
    assert "not installed here: run make test-vllm once, and then .venv-vllm/bin/trilane" in run.output
    monkeypatch.setattr(vllm_on_cpu, "find_spec", lambda name: name)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(StackError, match="with --model-path, or run make test-vllm once"):
        vllm_on_cpu.model(None, "--model-path")
    made = tmp_path / "models" / "smollm2"
    made.mkdir(parents=True)
    assert vllm_on_cpu.model(None, "--model-path") == made
    assert vllm_on_cpu.model(tmp_path, "--model-path") == tmp_path


def test_vllm_on_gpus_runs_on_one_of_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(vllm_on_cpu, "find_spec", lambda name: name)
    (tmp_path / "tokenizer.json").write_text('{"added_tokens": [{"id": 7, "special": true}]}')
    settings = load(engine={"model_path": tmp_path})
    monkeypatch.setattr(cards, "found", lambda: [cards.Card(0, cards.KINDS["L4"])])
    engines = lanes_engines.real("vllm", settings, 100, 1)
    assert engines.prompts.unwanted == (7,)
    assert lanes_engines.real_cards("vllm") == 1
    with pytest.raises(StackError, match="leave --cards out"):
        lanes_engines.real("vllm", settings, 100, 2)
