"""The precision check: what counts as agreement, and when the check fails."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.agreement import SEGMENT_TOKENS, compare, drift, pieces
from trilane.commands.precision import precision_check
from trilane.remote import Remote

Answer = Callable[[str, Mapping[str, Any]], str]
tokens = st.lists(st.sampled_from(["a", "b", "c"]), max_size=120)


@given(tokens, tokens)
def test_agreement_is_by_position_and_segments_add_up(reference: list[str], candidate: list[str]) -> None:
    found = compare(reference, candidate)
    assert found.exact == (reference == candidate)
    assert found.tokens == max(len(reference), len(candidate))
    assert found.agreed == sum(left == right for left, right in zip(reference, candidate, strict=False))
    assert found.agreed == sum(agreed for agreed, _ in found.segments)
    assert found.tokens == sum(of for _, of in found.segments)
    assert all(of == SEGMENT_TOKENS for _, of in found.segments[:-1])


def test_answers_that_part_late_show_it_in_the_later_segments() -> None:
    same = ["x"] * 60
    found = [compare([*same, *"abcd"], [*same, *"abXX"]), compare(["y"], ["y"])]
    assert drift(found) == [1.0, 12 / 14]


def test_the_gap_is_the_mean_before_the_answers_part() -> None:
    logprobs = [-0.1, -0.2, -9.0], [-0.3, -0.6, -1.0]
    assert compare(list("abc"), list("abX"), logprobs).logprob_gap == pytest.approx(0.3)
    assert compare(list("abc"), list("Xbc"), logprobs).logprob_gap is None


def test_pieces_are_words_signs_and_single_cjk_characters() -> None:
    assert pieces("It's 12 km.\n你好,世界") == ["It", "'", "s", "12", "km", ".", "你", "好", ",", "世", "界"]


class Lanes:
    """An API whose lanes answer as told; each keeps what it was asked."""

    def __init__(self, answer: Answer, logprobs: bool = True) -> None:
        self._answer, self._logprobs = answer, logprobs
        self.asked: list[dict[str, Any]] = []
        self._jobs: dict[str, dict[str, Any]] = {}

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        job_id = str(len(self._jobs))
        self._jobs[job_id] = self._job(job_id, body)
        return self._jobs[job_id]

    def end_of(self, job_id: str) -> dict[str, Any]:
        return self._jobs[job_id]

    def _job(self, job_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        lane = body["lane"]
        precision = {"hot": "bf16", "cold": "int8"}[lane]
        job = {"id": job_id, "lane": lane, "status": "failed", "result": None, "error": None}
        job["latency"] = [{"precision": precision, "engine": "vllm"}]
        text = self._answer(lane, body)
        if body.get("logprobs") and not self._logprobs:
            return job | {"error": {"code": "unsupported_parameter", "message": "logprobs"}}
        if text == "fail":
            return job | {"error": {"code": "engine_error", "message": "it broke"}}
        logprobs = [{"token": token, "logprob": -0.5, "top": []} for token in text.split()]
        choices = [{"text": text, "logprobs": logprobs}] if body.get("logprobs") else None
        return job | {"status": "succeeded", "result": {"output": text, "choices": choices}}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command on three prompts, against these lanes."""

    def run(lanes: Lanes, *arguments: str, prompts: str = '{"prompt": "one"}\n' * 3) -> Result:
        file = tmp_path / "prompts.jsonl"
        file.write_text(prompts)
        monkeypatch.setattr(Remote, "found", lambda api, key: lanes)
        options = ["--lane", "cold", "--reference", "hot", "--file", str(file), *arguments]
        return CliRunner().invoke(precision_check, options)

    return run


def same(lane: str, body: Mapping[str, Any]) -> str:
    return "the very same words"


def other(lane: str, body: Mapping[str, Any]) -> str:
    return "the very same words" if lane == "hot" else "the very other words"


def test_equal_answers_pass(run: Callable[..., Result]) -> None:
    lanes = Lanes(same)
    result = run(lanes, "--json")
    found = json.loads(result.output)
    assert (result.exit_code, found["exact_match"], found["agreement"]) == (0, 1.0, 1.0)
    assert found["engines"] == {"reference": ["bf16 (vllm)"], "candidate": ["int8 (vllm)"]}
    assert found["logprob_gap"] == 0
    assert {(body["temperature"], body["seed"]) for body in lanes.asked} == {(0.0, 0)}


def test_a_drop_beyond_the_allowed_fails_and_says_how_much(run: Callable[..., Result]) -> None:
    result = run(Lanes(other))
    assert result.exit_code == 1
    assert "25.0%, MORE THAN the allowed 2.0%" in result.output
    assert run(Lanes(other), "--max-drop", "0.25").exit_code == 0


def test_engines_without_logprobs_are_compared_by_words(run: Callable[..., Result]) -> None:
    result = run(Lanes(other, logprobs=False), "--json")
    found = json.loads(result.output)
    assert (found["agreement"], found["logprob_gap"]) == (0.75, None)


def test_a_score_decides_where_there_is_one(run: Callable[..., Result], tmp_path: Path) -> None:
    scoring = tmp_path / "scoring.py"
    scoring.write_text("def score(request, output):\n    return len(output) if request['prompt'] else 0\n")
    result = run(Lanes(other), "--score", f"{scoring}:score", "--json")
    found = json.loads(result.output)
    assert found["score"] == {"reference": 19.0, "candidate": 20.0}
    assert found["drop"] < 0
    assert result.exit_code == 0, "the words differ, but the score says the lane is better"


def test_a_prompt_without_an_answer_fails_the_check_and_is_named(run: Callable[..., Result]) -> None:
    result = run(Lanes(lambda lane, body: "fail" if lane == "cold" else "fine"))
    assert result.exit_code == 1
    assert "on cold: engine_error it broke" in result.output


@pytest.mark.parametrize(
    ("arguments", "prompts", "says"),
    [
        (["--lane", "hot"], '{"prompt": "one"}', "name the same lane"),
        ([], "\n", "holds no prompts"),
        ([], '{"prompt": "one"}\n[]', "line 2: not a JSON object"),
        (["--score", "no_such_module:f"], '{"prompt": "one"}', "no_such_module"),
        (["--score", "json:no_such"], '{"prompt": "one"}', "no_such"),
    ],
)
def test_bad_input_is_named(
    run: Callable[..., Result], arguments: list[str], prompts: str, says: str
) -> None:
    result = run(Lanes(same), *arguments, prompts=prompts)
    assert result.exit_code == 2
    assert says in result.output


def test_lanes_of_one_precision_are_told_of(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trilane.precision.check._engine", lambda job: "bf16 (vllm)")
    assert "Both lanes ran the same precision" in run(Lanes(same)).output
