"""The answers to one request, put together from vLLM's deltas; nothing of vLLM is imported here."""

from dataclasses import dataclass, field
from typing import Any

from jobs.domain.outcomes import (
    Choice,
    Completed,
    EngineTimings,
    FinishReason,
    Outcome,
    Retryable,
    TokenLogprob,
    Usage,
)
from jobs.domain.requests import Sampling
from workers.engines.seam import Chunk

ABORTED = Retryable("engine_stopped", "the engine was stopped")
_FAILED = Retryable("engine_error", "vLLM could not finish the request")


@dataclass(slots=True)
class _Answer:
    """One of the request's answers so far."""

    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None


class Answers:
    """Takes what `AsyncLLM.generate` yields in its delta mode; the first answer is the one that streams."""

    def __init__(self, sampling: Sampling) -> None:
        self._answers = [_Answer() for _ in range(sampling.n)]
        self._with_logprobs = bool(sampling.logprobs)
        self._top = sampling.top_logprobs or 0
        self._held: list[
            int
        ] = []  # the tokens of a character, or of a possible stop string, that is not whole
        self._timings = EngineTimings()
        self._usage = Usage()

    def take(self, output: Any) -> Chunk | None:
        """The next chunk, if this `RequestOutput` gives one; the last has the outcome."""
        text = ""
        for part in output.outputs:
            answer = self._answers[part.index]
            answer.texts.append(part.text)
            answer.tokens += len(part.token_ids)
            answer.finish_reason = part.finish_reason or answer.finish_reason
            if self._with_logprobs:
                answer.logprobs.extend(map(self._logprob, part.token_ids, part.logprobs or ()))
            if part.index == 0:
                text = part.text
                self._held.extend(part.token_ids)
                self._timings = _timings(output.metrics)
        if not (text or output.finished):
            return None
        token_ids, self._held = tuple(self._held), []
        if not output.finished:
            return Chunk(text, len(token_ids), token_ids=token_ids)
        self._usage = Usage(
            prompt_tokens=len(output.prompt_token_ids),
            output_tokens=sum(answer.tokens for answer in self._answers),
            cached_tokens=output.num_cached_tokens or 0,
        )
        return Chunk(text, len(token_ids), self._outcome(), token_ids)

    def _outcome(self) -> Outcome:
        reasons = {answer.finish_reason for answer in self._answers}
        if "abort" in reasons:
            return ABORTED
        if not reasons <= set(FinishReason):
            return _FAILED
        choices = tuple(map(self._choice, self._answers))
        wanted = self._with_logprobs or len(choices) > 1
        return Completed(choices[0].finish_reason, self._usage, self._timings, choices if wanted else ())

    def _choice(self, answer: _Answer) -> Choice:
        logprobs = tuple(answer.logprobs) if self._with_logprobs else None
        return Choice("".join(answer.texts), FinishReason(answer.finish_reason or ""), logprobs)

    def _logprob(self, token_id: int, position: Any) -> TokenLogprob:
        chosen = position[token_id]
        likeliest = sorted(position.values(), key=lambda one: one.rank)[: self._top]
        top = tuple((one.decoded_token or "", one.logprob) for one in likeliest)
        return TokenLogprob(chosen.decoded_token or "", chosen.logprob, top)


def _timings(metrics: Any) -> EngineTimings:
    """The engine core's own times (seconds, monotonic), as `RequestStateStats` keeps them."""
    if metrics is None or not metrics.scheduled_ts:
        return EngineTimings()
    return EngineTimings(
        engine_queue_ms=(metrics.scheduled_ts - metrics.queued_ts) * 1000,
        prefill_ms=(metrics.first_token_ts - metrics.scheduled_ts) * 1000,
        decode_ms=(metrics.last_token_ts - metrics.first_token_ts) * 1000,
        preemptions=metrics.num_preemptions,
    )
