"""The simulated engine in virtual time, where every millisecond is known."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jobs.domain.outcomes import Completed, FinishReason, Outcome, Retryable
from jobs.domain.policies import EnginePolicy, Scheduling
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.domain.tokens import estimate
from workers.engines.registry import EngineConfig, UnknownEngine, build
from workers.engines.sim import SimEngine, SimProfile

# 10 ms a step for one sequence, 1 ms more for each further one; 1 ms for each prompt token.
PROFILE = SimProfile(
    slots=2,
    max_model_len=1000,
    max_batched_tokens=100,
    step_ms=((1, 10.0), (11, 20.0)),
    prefill_ms_per_token=1.0,
    kv_ms_per_1k_tokens=0.0,
)


class VirtualTime:
    """Time that passes only while the engine sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        """Seconds since the beginning."""
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        """Let the time pass, and everybody else have a turn."""
        await asyncio.sleep(0)
        self.now_s += seconds


def ask(words: int = 1, **sampling: Any) -> GenerationRequest:
    """A request of `words` tokens beside the overhead."""
    return GenerationRequest("job", (Message(Role.USER, "four" * words),), Sampling(**sampling))


PROMPT_TOKENS = estimate(ask().messages)


def outcomes(
    *requests: GenerationRequest,
    profile: SimProfile = PROFILE,
    fault: Callable[[GenerationRequest], Outcome | None] = lambda request: None,
) -> list[Outcome]:
    """What becomes of `requests` that arrive together."""

    async def run() -> list[Outcome]:
        time = VirtualTime()
        engine = SimEngine("model", profile, fault=fault, now=time.now, sleep=time.sleep)
        await engine.start()

        async def one(request: GenerationRequest) -> Outcome:
            outcome = [chunk.outcome async for chunk in engine.generate(request)][-1]
            assert outcome
            return outcome

        ended = await asyncio.gather(*map(one, requests))
        await engine.stop()
        return ended

    return asyncio.run(run())


def timings_ms(outcome: Outcome) -> tuple[float, ...]:
    """Queue, prefill and decode time."""
    assert isinstance(outcome, Completed)
    timings = outcome.timings
    assert timings.engine_queue_ms is not None
    assert timings.prefill_ms is not None
    assert timings.decode_ms is not None
    return timings.engine_queue_ms, timings.prefill_ms, timings.decode_ms


def test_one_sequence_takes_a_prefill_and_a_step_per_further_token() -> None:
    (outcome,) = outcomes(ask(max_tokens=4))
    assert timings_ms(outcome) == pytest.approx((0, 10 + PROMPT_TOKENS, 30))


def test_sequences_share_their_steps() -> None:
    pair = outcomes(ask(max_tokens=4), ask(max_tokens=4))
    assert [timings_ms(outcome) for outcome in pair] == [pytest.approx((0, 11 + 2 * PROMPT_TOKENS, 33))] * 2


def test_beyond_the_slots_a_request_waits_for_the_first_to_end() -> None:
    short, long, third = outcomes(ask(max_tokens=2), ask(max_tokens=9), ask(max_tokens=1))
    assert timings_ms(short)[0] == timings_ms(long)[0] == 0
    assert timings_ms(third)[0] == pytest.approx(sum(timings_ms(short)))


def test_a_long_prompt_is_prefilled_in_chunks() -> None:
    (outcome,) = outcomes(ask(250 - PROMPT_TOKENS + 1, max_tokens=1))
    assert timings_ms(outcome) == pytest.approx((0, 3 * 10 + 250, 0))


def test_the_kv_cache_slows_the_steps() -> None:
    (outcome,) = outcomes(ask(max_tokens=2), profile=replace(PROFILE, kv_ms_per_1k_tokens=1000.0))
    assert timings_ms(outcome)[2] == pytest.approx(10 + PROMPT_TOKENS + 1)


def test_by_priority_the_more_urgent_overtakes_among_those_that_wait() -> None:
    requests = [replace(ask(max_tokens=9), priority=priority) for priority in (5, 5, 7, 5, 0, 5)]
    by_priority = replace(PROFILE, slots=1, scheduling=Scheduling.PRIORITY)
    queued = [timings_ms(outcome)[0] for outcome in outcomes(*requests, profile=by_priority)]
    assert sorted(range(6), key=queued.__getitem__) == [4, 0, 1, 3, 5, 2]


def test_a_long_prompt_takes_no_more_of_a_step_than_it_may() -> None:
    profile = replace(PROFILE, long_prefill_tokens=25)
    (outcome,) = outcomes(ask(100 - PROMPT_TOKENS + 1, max_tokens=1), profile=profile)
    assert timings_ms(outcome) == pytest.approx((0, 4 * 10 + 100, 0))


def test_jitter_varies_the_steps_around_their_mean() -> None:
    (outcome,) = outcomes(ask(max_tokens=900), profile=replace(PROFILE, jitter=0.3))
    _, _, decode_ms = timings_ms(outcome)
    assert decode_ms != pytest.approx(8990, rel=1e-6)
    assert decode_ms == pytest.approx(8990, rel=0.03)
    assert outcomes(ask(max_tokens=900), profile=replace(PROFILE, jitter=0.3)) == [outcome]


def test_an_interval_joins_tokens_into_chunks_and_the_first_comes_at_once() -> None:
    async def run() -> list[int]:
        time = VirtualTime()
        profile = replace(PROFILE, stream_interval=4)
        engine = SimEngine("model", profile, now=time.now, sleep=time.sleep)
        await engine.start()
        sizes = [chunk.tokens async for chunk in engine.generate(ask(max_tokens=11))]
        await engine.stop()
        return sizes

    assert asyncio.run(run()) == [1, 4, 4, 2]


def test_it_takes_the_policy_of_its_lane_and_options_win() -> None:
    policy = EnginePolicy(batched_tokens=50, long_prefill_tokens=25, scheduling=Scheduling.PRIORITY)
    config = EngineConfig("model", 2, 1000, policy=policy, options={"long_prefill_tokens": 10})
    engine = build("sim", config)
    assert isinstance(engine, SimEngine)
    profile = engine.profile
    assert (profile.max_batched_tokens, profile.long_prefill_tokens) == (50, 10)
    assert profile.scheduling is Scheduling.PRIORITY


def test_the_scale_stretches_the_time() -> None:
    (outcome,) = outcomes(ask(max_tokens=4), profile=replace(PROFILE, time_scale=0.5))
    assert timings_ms(outcome)[2] == pytest.approx(15)


@pytest.mark.parametrize(("sequences", "step_ms"), [(1, 10), (6, 15), (11, 20), (16, 25)])
def test_step_time_is_linear_between_the_points_and_beyond(sequences: int, step_ms: float) -> None:
    assert PROFILE.step_s(sequences, 0, 0) * 1000 == pytest.approx(step_ms)


def test_without_compute_the_answer_is_one_chunk_and_no_slot_is_held() -> None:
    async def run() -> None:
        engine = SimEngine("model", replace(PROFILE, time_scale=0.0))
        await engine.start()
        stream = engine.generate(ask(max_tokens=4))
        chunk = await anext(stream)
        assert chunk.tokens == 4
        assert isinstance(chunk.outcome, Completed)
        assert engine.stats().running == 0
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        await engine.stop()

    asyncio.run(run())


def test_answers_of_a_given_length_end_by_themselves() -> None:
    profile = replace(PROFILE, output_tokens=3)
    ended, limited = outcomes(ask(max_tokens=4), ask(max_tokens=2), profile=profile)
    assert isinstance(ended, Completed)
    assert (ended.finish_reason, ended.usage.output_tokens) == (FinishReason.STOP, 3)
    assert isinstance(limited, Completed)
    assert (limited.finish_reason, limited.usage.output_tokens) == (FinishReason.LENGTH, 2)


def test_a_fault_ends_only_the_request_it_names() -> None:
    failure = Retryable("engine_error", "injected")
    poison = ask(2)
    assert outcomes(poison, fault=lambda request: failure) == [failure]
    ended = outcomes(ask(), poison, fault=lambda request: failure if request is poison else None)
    assert isinstance(ended[0], Completed)
    assert ended[1] == failure


def test_the_registry_builds_it_by_name_and_lists_the_names() -> None:
    engine = build("sim", EngineConfig("model", slots=2, max_model_len=1000, options={"time_scale": 0}))
    assert (engine.name, engine.model) == ("sim", "model")
    with pytest.raises(UnknownEngine, match="llamacpp, sim"):
        build("gpt", EngineConfig("model", slots=2, max_model_len=1000))
