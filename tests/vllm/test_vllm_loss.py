"""Real vLLM that loses its core process, or finds too little memory; and one that speculates."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.domain.outcomes import Rejected, Retryable
from jobs.domain.policies import EnginePolicy, SpeculationPolicy
from tests.answers import collect
from tests.vllm.driver import Driver, ask, config, core_of, until
from workers.engines.seam import ENGINE_DEAD
from workers.engines.vllm import EngineStartError, build
from workers.engines.vllm_memory import REMEDY

BLOCK_BYTES = 128 * 2 * 2 * 32 * 4  # tokens, layers, keys and values, width, float32
RELOAD_S = 300.0


@pytest.fixture(scope="module")
def mortal(tiny_llama: Path) -> Iterator[Driver]:
    """An engine of this module's own, which speculates and has a cache for six blocks."""
    policy = EnginePolicy(4, batched_tokens=1024, speculation=SpeculationPolicy())
    with Driver.started(tiny_llama, policy, kv_cache_memory_bytes=7 * BLOCK_BYTES) as driver:
        yield driver


def test_while_it_speculates_it_refuses_what_vllm_would(mortal: Driver) -> None:
    refused: dict[str, Any] = {"min_p": 0.5, "logit_bias": {"500": 1.0}}
    for name, value in refused.items():
        outcome = mortal.answer(ask(**{name: value})).outcome
        assert isinstance(outcome, Rejected)
        assert outcome.code == "unsupported_parameter"
        assert name in outcome.message
        assert name not in mortal.engine.parameters


def test_speculation_tells_how_many_candidates_were_accepted(mortal: Driver) -> None:
    mortal.answer(ask("one two three four " * 10, max_tokens=100))
    acceptance = mortal.engine.stats().spec_acceptance
    assert acceptance is not None and 0 <= acceptance <= 1


def test_sequences_that_outgrow_the_cache_are_preempted_and_say_so(mortal: Driver) -> None:
    async def crowd() -> list[int]:
        work = [collect(mortal.engine, ask(f"{i} tales", max_tokens=300)) for i in range(4)]
        answers = await asyncio.gather(*work)
        return [answer.completed.timings.preemptions or 0 for answer in answers]

    assert sum(mortal.run(crowd())) > 0
    assert mortal.engine.stats().preemptions > 0


def test_a_core_that_ran_out_of_memory_is_loaded_again_with_half_the_batch(mortal: Driver) -> None:
    async def die() -> tuple[str, str]:
        stream = mortal.engine.generate(ask(max_tokens=400))
        await anext(stream)
        # As vLLM logs it before its core ends.
        with mortal.engine._log.path.open("a") as file:
            file.write("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
        core_of(mortal.engine).kill()
        codes = [chunk.outcome.code async for chunk in stream if isinstance(chunk.outcome, Retryable)]
        assert not mortal.engine.dead
        answer = await asyncio.wait_for(collect(mortal.engine, ask(max_tokens=3)), RELOAD_S)
        assert answer.completed.usage.output_tokens == 3
        return codes[0], str(mortal.engine._llm.scheduler_config.max_num_seqs)

    assert mortal.run(die()) == ("out_of_memory", "2")


def test_a_core_that_dies_ends_all_streams_and_the_engine_is_dead(mortal: Driver) -> None:
    async def die() -> list[str]:
        work = [asyncio.create_task(collect(mortal.engine, ask(f"{i}", max_tokens=400))) for i in range(3)]
        await until(lambda: mortal.engine.stats().running == 2)
        core_of(mortal.engine).kill()
        answers = [*await asyncio.gather(*work), await collect(mortal.engine, ask())]
        await until(lambda: mortal.engine.dead)
        return [answer.outcome.code for answer in answers if isinstance(answer.outcome, Retryable)]

    assert mortal.run(die()) == [ENGINE_DEAD] * 4


def test_too_little_memory_for_one_sequence_names_the_remedy(tiny_llama: Path) -> None:
    engine = build(config(tiny_llama, EnginePolicy(1, batched_tokens=512), kv_cache_memory_bytes=BLOCK_BYTES))
    with pytest.raises(EngineStartError, match="No available memory") as refused:
        asyncio.run(engine.start())
    assert str(refused.value).endswith(REMEDY)
