"""The prompts of the lanes' benchmark on a real tokenizer: as many tokens as asked for, on both sides."""

import asyncio
from collections.abc import Sequence

from jobs.domain.outcomes import Completed, FinishReason, Usage
from jobs.domain.policies import Precision
from jobs.domain.requests import GenerationRequest
from jobs.settings import load
from trilane.bench import lanes_engines, lanes_plan
from trilane.bench.lanes_prompts import Prompts
from workers.engines.seam import Engine

LONGEST = 400


async def usage(
    engine: Engine, prompts: Prompts, number: int, prompt_tokens: int, output_tokens: int
) -> Usage:
    """What the engine counts of a request of these lengths, which ends by its length alone."""
    messages, sampling = prompts.request(number, prompt_tokens, output_tokens)
    outcomes = [chunk.outcome async for chunk in engine.generate(GenerationRequest("id", messages, sampling))]
    assert isinstance(outcomes[-1], Completed)
    assert outcomes[-1].finish_reason is FinishReason.LENGTH
    return outcomes[-1].usage


async def counted(lengths: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Prompt and answer tokens by the engine, for those asked for."""
    engines = lanes_engines.real("llamacpp", load(), LONGEST, cards=1)
    engine = engines.make({"hot": lanes_plan.policies(Precision.FP16)["hot"]}, 0)
    await engine.start()
    try:
        prompts = await engines.prompts.measured(engine, 2)
        found = [
            await usage(engine, prompts, *each) for each in ((n, *each) for n, each in enumerate(lengths))
        ]
    finally:
        await engine.stop()
    return [(each.prompt_tokens, each.output_tokens) for each in found]


def test_prompts_and_answers_are_as_long_as_asked_for_and_the_longest_fits() -> None:
    lengths = [(60, 9), (171, 30), (LONGEST - 5, 5), (LONGEST, 1)]
    assert asyncio.run(counted(lengths)) == lengths


def test_a_prompt_shorter_than_the_template_is_the_shortest_that_there_is() -> None:
    (shortest, _), (shorter_yet, _), (next_one, _) = asyncio.run(counted([(8, 2), (1, 2), (39, 2)]))
    assert shortest == shorter_yet == 38
    assert next_one == 39
