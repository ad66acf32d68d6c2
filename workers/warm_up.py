"""Runs a fresh engine warm, so that no job pays for its first steps, and caches the lanes' prompts."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import structlog

from jobs.domain.lanes import LanePolicy
from jobs.domain.outcomes import Completed, Outcome, Rejected, Retryable
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from workers.engines.seam import Engine
from workers.warm_up_prompts import Filler, Messages, halved, templates

_OUTPUT_TOKENS = 16  # enough for some decode steps of the whole batch
_SHORT = (Message(Role.USER, "Hello!"),)
_PROBE_WORDS = (8, 136)

log = structlog.get_logger()


class WarmUpError(RuntimeError):
    """The engine does not do what its lanes ask of it; the message says at what, and the remedy."""


async def warm_up(
    engine: Engine, policies: Sequence[LanePolicy], told: Callable[[Mapping[str, Any]], None]
) -> None:
    """Run the lanes' warm-up through `engine`, which has started; `told` gets the figures after each step.

    Every batch size runs with every prompt length of its lane, as far as the engine has places and the lane
    has room; then the templates, so that their blocks are the freshest in the cache. The figures are `done`
    and `of` (steps), `first_request_ms` (a short request to the cold engine, to its first token) and at the
    end `warm_request_ms` (the same one again). Raises `WarmUpError` or `TemplatesError`.
    """
    prompts = dict.fromkeys(prompt for policy in policies for prompt in templates(policy))
    await _WarmUp(engine, policies, list(prompts), told).run()


class _WarmUp:
    """One engine's steps, counted."""

    def __init__(
        self,
        engine: Engine,
        policies: Sequence[LanePolicy],
        prompts: Sequence[Messages],
        told: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._engine, self._told = engine, told
        self._filler, self._numbers = Filler(), count()
        slots = max(policy.most_limit for policy in policies)
        self._sizes = sorted({size for policy in policies for size in _sizes(policy, slots)})
        self._groups = [prompts[start : start + slots] for start in range(0, len(prompts), slots)]
        self._figures: dict[str, Any] = {"done": 0, "of": 3 + len(self._sizes) + len(self._groups)}

    async def run(self) -> None:
        """All steps."""
        await self._step([_SHORT], 1, figure="first_request_ms")
        few, many = await self._step([self._filler.of_words(words) for words in _PROBE_WORDS], 1)
        self._filler.measure((_PROBE_WORDS[0], few), (_PROBE_WORDS[1], many))
        for tokens, batch in self._sizes:
            await self._step([self._filler.of_tokens(tokens) for _ in range(batch)], _OUTPUT_TOKENS)
        for group in self._groups:
            await self._step(group, 1)
        await self._step([_SHORT], 1, figure="warm_request_ms")
        log.info("worker.warm", **self._figures)

    async def _step(
        self, prompts: Sequence[Messages], max_tokens: int, figure: str | None = None
    ) -> list[int]:
        """Run the prompts at once; returns their tokens. The step's milliseconds become the figure named."""
        began = time.perf_counter()
        outcomes = await asyncio.gather(*(self._ask(prompt, max_tokens) for prompt in prompts))
        took_ms = (time.perf_counter() - began) * 1000
        completed = [outcome for outcome in outcomes if isinstance(outcome, Completed)]
        tokens = [outcome.usage.prompt_tokens for outcome in completed]
        if len(completed) < len(prompts):
            raise WarmUpError(_failure(len(prompts), next(one for one in outcomes if one not in completed)))
        if figure:
            self._figures[figure] = took_ms
        self._figures["done"] += 1
        self._told(dict(self._figures))
        log.info(
            "worker.warming",
            done=self._figures["done"],
            of=self._figures["of"],
            prompts=len(prompts),
            prompt_tokens=max(tokens),
            took_ms=took_ms,
        )
        return tokens

    async def _ask(self, messages: Messages, max_tokens: int) -> Outcome:
        """How one request ends; a prompt that is too long for the engine is cut until it fits."""
        outcome = await self._outcome(messages, max_tokens)
        while isinstance(outcome, Rejected) and outcome.code == "prompt_too_long":
            shorter = halved(messages)
            if shorter is None:
                break
            messages = shorter
            outcome = await self._outcome(messages, max_tokens)
        return outcome

    async def _outcome(self, messages: Messages, max_tokens: int) -> Outcome:
        sampling = Sampling(max_tokens=max_tokens, temperature=0.0)
        request = GenerationRequest(f"warm-up-{next(self._numbers)}", messages, sampling)
        async with aclosing(self._engine.generate(request)) as stream:
            async for chunk in stream:
                if chunk.outcome is not None:
                    return chunk.outcome
        raise RuntimeError("the engine's stream ended without an outcome")


def _sizes(policy: LanePolicy, slots: int) -> set[tuple[int, int]]:
    """Prompt tokens and batch sizes of a lane: what its engine can hold, and its model length."""
    longest = max(1, policy.max_model_len - _OUTPUT_TOKENS)
    return {
        (min(tokens, longest), min(batch, slots))
        for tokens in policy.warm_up.prompt_tokens
        for batch in policy.warm_up.batches
    }


def _failure(prompts: int, outcome: Outcome) -> str:
    told = (
        f"{outcome.code}: {outcome.message}" if isinstance(outcome, Rejected | Retryable) else repr(outcome)
    )
    return (
        f"the engine failed while it warmed up, at {prompts} prompts at once ({told}): lower the lane's"
        " warm_up.batches or warm_up.prompt_tokens, or give its engine more room; engine.warm_up = false"
        " leaves the warm-up out"
    )
