"""A lane's guards around one stream: what they end is an answer like any other."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from jobs.domain.outcomes import Choice, Completed, FinishReason, Usage
from jobs.domain.requests import Sampling
from workers.engines.seam import Chunk
from workers.guards.seam import Guard, shortened


async def guarded(
    stream: AsyncGenerator[Chunk, None],
    guards: Sequence[Guard],
    sampling: Sampling,
    prompt_tokens: Callable[[], int],
) -> AsyncGenerator[Chunk, None]:
    """The stream as the guards let it through; where one ends it, it is closed, so its sequence is free.

    Usage then holds the tokens generated so far and `prompt_tokens()`, since the engine has told of neither.
    Of several answers the others are still waited for, in silence.
    """
    watched = _Watched(guards)
    chunk, text, tokens, untold = Chunk(), "", 0, 0  # a token is told of with the first text after it
    async with aclosing(stream):
        async for chunk in stream:
            tokens += chunk.tokens
            untold += chunk.tokens
            text = watched.see(chunk)
            if chunk.outcome is not None or (watched.reason is not None and sampling.n == 1):
                break
            if text:
                yield Chunk(text, untold, token_ids=chunk.token_ids)
                untold = 0
    outcome = chunk.outcome
    if isinstance(outcome, Completed):
        outcome = watched.judged(outcome)
    elif outcome is None and watched.reason is not None:
        usage = Usage(await asyncio.to_thread(prompt_tokens), tokens)
        outcome = watched.ended(usage, as_choice=bool(sampling.logprobs))
    if outcome is not None:
        yield Chunk(text, untold, outcome, chunk.token_ids)


class _Watched:
    """The guards of one stream, asked in order; the first that ends it says why, a later one may cut more."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.reason: FinishReason | None = None
        self._guards = guards
        self._sent: list[str] = []

    def see(self, chunk: Chunk) -> str:
        """What may go on of this chunk's text."""
        if self.reason is not None:
            return ""
        text = chunk.text
        for guard in self._guards:
            passed = guard.see(
                text, chunk.token_ids, last=chunk.outcome is not None or self.reason is not None
            )
            text = passed.text
            self.reason = passed.ends or self.reason
        self._sent.append(text)
        return text

    def ended(self, usage: Usage, *, as_choice: bool) -> Completed:
        """The answer that a guard ended; as a choice too, where the caller reads those."""
        reason = self.reason or FinishReason.STOP
        choices = (Choice("".join(self._sent), reason),) if as_choice else ()
        return Completed(reason, usage, choices=choices)

    def judged(self, outcome: Completed) -> Completed:
        """The engine's outcome, with what was cut from the stream cut from all that was not streamed."""
        choices = list(outcome.choices)
        for guard in self._guards:
            choices = [guard.judged(choice) for choice in choices]
        if self.reason is not None and choices:
            choices[0] = shortened(choices[0], len("".join(self._sent)), self.reason)
        return replace(outcome, finish_reason=self.reason or outcome.finish_reason, choices=tuple(choices))
