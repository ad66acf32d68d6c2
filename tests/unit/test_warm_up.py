"""Warm-up: every size runs once, clipped to lane and engine; the templates run; a failure is an error."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from jobs.domain import tokens
from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.outcomes import Outcome, Rejected, Retryable
from jobs.domain.policies import WarmUpPolicy
from jobs.domain.requests import GenerationRequest, Role
from workers.engines.seam import Chunk
from workers.engines.sim import SimEngine, SimProfile
from workers.warm_up import WarmUpError, warm_up
from workers.warm_up_prompts import TemplatesError, templates


class Recording(SimEngine):
    """The sim engine, at once, with what was asked of it and how many were in it together."""

    def __init__(self, max_model_len: int = 65_536, fault: Outcome | None = None, after: int = 0) -> None:
        super().__init__(
            "model",
            SimProfile(max_model_len=max_model_len, time_scale=0),
            fault=lambda request: fault if len(self.prompts) > after else None,
        )
        self.prompts: list[str] = []
        self.rounds: list[list[int]] = []
        self._inside = 0

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """As the engine, each round of requests held until all of it is there."""
        self.prompts.append("\n".join(message.content for message in request.messages))
        if not self._inside:
            self.rounds.append([])
        self._inside += 1
        self.rounds[-1].append(tokens.estimate(request.messages))
        await asyncio.sleep(0)
        try:
            async for chunk in super().generate(request):
                yield chunk
        finally:
            self._inside -= 1


@dataclass
class Ran:
    """A warm-up that was run."""

    engine: Recording
    told: list[Mapping[str, Any]] = field(default_factory=list)


def lane(limit: int = 8, max_model_len: int = 4_096, **policy: Any) -> LanePolicy:
    """The hot lane with this warm-up."""
    given = WarmUpPolicy(**policy)
    return replace(LANES["hot"], limit=limit, max_model_len=max_model_len, warm_up=given)


def run(policies: Sequence[LanePolicy], engine: Recording | None = None) -> Ran:
    """Start an engine and run its warm-up."""
    ran = Ran(engine or Recording())

    async def start() -> None:
        await ran.engine.start()
        try:
            await warm_up(ran.engine, policies, ran.told.append)
        finally:
            await ran.engine.stop()

    asyncio.run(start())
    return ran


def shapes(ran: Ran) -> list[tuple[int, int]]:
    """The batch sizes and longest prompts of the rounds with filler, to the nearest 10 tokens."""
    size_rounds = [one for one in ran.engine.rounds if len(set(one)) and min(one) > 60]
    return [(len(one), round(max(one), -1)) for one in size_rounds]


def test_every_batch_size_runs_with_every_length() -> None:
    ran = run([lane()])
    expected = [(batch, length) for length in (512, 1_024, 2_048) for batch in (1, 4, 8)]
    got = shapes(ran)
    assert [batch for batch, _ in got] == [batch for batch, _ in expected]
    for (_, tokens_got), (_, asked) in zip(got, expected, strict=True):
        assert abs(tokens_got - asked) <= 0.05 * asked


def test_sizes_are_clipped_to_the_lane_and_the_engine() -> None:
    got = shapes(run([lane(limit=2, max_model_len=1_040)]))
    assert [batch for batch, _ in got] == [1, 2, 1, 2]
    assert max(length for _, length in got) <= 1_040


def test_lanes_of_one_engine_warm_it_up_together() -> None:
    small, large = lane(batches=(1,), prompt_tokens=(512,)), lane(batches=(1, 4), prompt_tokens=(512,))
    assert [batch for batch, _ in shapes(run([small, large]))] == [1, 4]


def test_no_prompt_is_cached_for_another() -> None:
    ran = run([lane()])
    long = [prompt for prompt in ran.engine.prompts if len(prompt) > 200]
    assert len({prompt[:10] for prompt in long}) == len(long)


def test_progress_is_told_after_each_step_and_both_requests_are_timed() -> None:
    told = run([lane()]).told
    of = told[0]["of"]
    assert [one["done"] for one in told] == list(range(1, of + 1))
    assert all(one["of"] == of and one["first_request_ms"] > 0 for one in told)
    assert told[-1]["warm_request_ms"] > 0
    assert "warm_request_ms" not in told[-2]


def test_a_prompt_too_long_for_the_engine_is_cut() -> None:
    ran = run([lane()], Recording(max_model_len=300))
    assert ran.told[-1]["done"] == ran.told[-1]["of"]


@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize(
    "outcome", [Retryable("out_of_memory", "no room for 8"), Rejected("bad_template", "no chat template")]
)
def test_a_failure_is_an_error_that_says_what_to_do(outcome: Retryable | Rejected, after: int) -> None:
    with pytest.raises(WarmUpError, match=rf"{outcome.code}: {outcome.message}.*engine\.warm_up = false"):
        run([lane()], Recording(fault=outcome, after=after))


def test_an_engine_that_takes_no_prompt_at_all_is_an_error() -> None:
    with pytest.raises(WarmUpError, match="prompt_too_long"):
        run([lane()], Recording(max_model_len=1))


def test_the_lanes_templates_run_last_and_once_each(tmp_path: Path) -> None:
    file = tmp_path / "templates.jsonl"
    spoken = [[{"role": "system", "content": f"You sell shoe {number}."}] for number in range(10)]
    file.write_text("\n\n".join(json.dumps({"messages": messages}) for messages in [*spoken, spoken[0]]))
    ran = run([lane(templates_file=str(file))])
    assert ran.engine.prompts[-11:-1] == [f"You sell shoe {number}." for number in range(10)]
    assert [len(one) for one in ran.engine.rounds[-3:]] == [8, 2, 1]


def test_without_a_file_there_are_greetings_and_system_prompts() -> None:
    prompts = templates(LANES["hot"])
    assert len(set(prompts)) == len(prompts) > 20
    assert {prompt[0].role for prompt in prompts} == {Role.USER, Role.SYSTEM}


@pytest.mark.parametrize(
    "line",
    ["{", "[]", "{}", '{"messages": []}', '{"messages": [{"role": "user"}]}', '{"messages": [{"role": 1}]}'],
)
def test_a_line_of_another_form_is_named(line: str, tmp_path: Path) -> None:
    file = tmp_path / "templates.jsonl"
    file.write_text('{"messages": [{"role": "user", "content": "Hi"}]}\n' + line)
    with pytest.raises(
        TemplatesError, match=r"lane\.hot\.warm_up\.templates_file: line 2 of .* not of the form"
    ):
        templates(lane(templates_file=str(file)))


def test_a_file_that_is_missing_is_named() -> None:
    with pytest.raises(TemplatesError, match=r"lane\.hot\.warm_up\.templates_file: /none cannot be read"):
        templates(lane(templates_file="/none"))
