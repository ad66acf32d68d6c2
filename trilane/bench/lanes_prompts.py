"""The requests of the lanes' benchmark as an engine gets them: prompts and answers of given lengths."""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, replace

from jobs.domain.jobs import new_id
from jobs.domain.outcomes import Completed
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.domain.tokens import estimate
from workers.engines.seam import Engine

_FILLER = "four"  # one token by Trilane's estimate, and in SmolLM2's vocabulary
_PROBES = (1, 65)  # fillers
_PROBE_NUMBER = 9_999_999  # of no request


class Refused(ValueError):
    """The engine answered nothing; the message says what was asked, and why not."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """Makes requests; no two prompts begin alike, so that none is cached for another.

    `frame_tokens` are those of the template and the number, `filler_tokens` those of each filler, at first
    by Trilane's estimate, which is what the simulated engine counts. The `unwanted` tokens never appear in
    an answer: with those that would end it, it gets as long as asked for.
    """

    frame_tokens: float = estimate([Message(Role.USER, "0000000 ")])
    filler_tokens: float = 1.0
    unwanted: tuple[int, ...] = ()

    def request(
        self, number: int, prompt_tokens: int, output_tokens: int
    ) -> tuple[tuple[Message, ...], Sampling]:
        """A prompt of that many tokens, or of the fewest that there can be."""
        fillers = max(round((prompt_tokens - self.frame_tokens) / self.filler_tokens), 1)
        sampling = Sampling(output_tokens, temperature=0.0)
        if self.unwanted:
            sampling = replace(sampling, logit_bias=dict.fromkeys(map(str, self.unwanted), -100.0))
        return _filled(number, fillers), sampling

    async def measured(self, engine: Engine, places: int) -> "Prompts":
        """The same by what this engine counts, and the frame cached in all its places. Raises `Refused`."""
        few, *_ = await asyncio.gather(*(_count(engine, _PROBES[0]) for _ in range(places)))
        many = await _count(engine, _PROBES[1])
        filler_tokens = (many - few) / (_PROBES[1] - _PROBES[0])
        return replace(self, frame_tokens=few - filler_tokens * _PROBES[0], filler_tokens=filler_tokens)


def _filled(number: int, fillers: int) -> tuple[Message, ...]:
    return (Message(Role.USER, f"{number:07} " + _FILLER * fillers),)


async def _count(engine: Engine, fillers: int) -> int:
    request = GenerationRequest(str(new_id()), _filled(_PROBE_NUMBER, fillers), Sampling(max_tokens=1))
    async with aclosing(engine.generate(request)) as stream:
        outcomes = [chunk.outcome async for chunk in stream]
    if isinstance(outcome := outcomes[-1], Completed):
        return outcome.usage.prompt_tokens
    raise Refused(f"engine {engine.name} does not answer a short prompt: {outcome}")
