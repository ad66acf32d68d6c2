"""A model of a continuously batching engine: slots, prefill and decode steps in time, no computing at all."""

import asyncio
import math
import random
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

from jobs.domain import tokens
from jobs.domain.outcomes import Completed, EngineTimings, FinishReason, Outcome, Rejected, Retryable, Usage
from jobs.domain.policies import Scheduling
from jobs.domain.requests import GenerationRequest
from workers.engines.registry import EngineConfig
from workers.engines.seam import BASIC_PARAMETERS, Chunk, EngineStats

_STOPPED = Retryable("engine_stopped", "the engine was stopped")
_WORDS = ("lane ", "batch ", "prefill ", "décode ", "队列", "cache ", "token ", "🙂 ")
_PIECES = tuple(f"{number} {word}" for number in range(1024) for word in _WORDS)


@dataclass(frozen=True, slots=True)
class SimProfile:
    """How fast the modelled engine is. The defaults are round figures of no particular card.

    A step takes `step_ms` at its number of sequences (points of sequences and milliseconds, at least two;
    linear between them and beyond), plus `prefill_ms_per_token` for each prompt token in it, plus
    `kv_ms_per_1k_tokens` for each thousand tokens in the KV cache, all times `time_scale`. With a scale of 0
    nothing is modelled: every answer is one chunk, at once, with no slot and no timer. `jitter` is the
    standard deviation of a step's duration over its mean, drawn from `seed` (log-normal).
    `workers.engines.sim_curves` has profiles that were fitted to a measured card.
    """

    slots: int = 8
    max_model_len: int = 8192
    max_batched_tokens: int = 4096  # in one step; the rest of a long prompt goes into the next
    long_prefill_tokens: int | None = None  # of one prompt in one step; None: as many as the step holds
    scheduling: Scheduling = Scheduling.FCFS  # by priority: 0 before 9 among those that wait
    step_ms: tuple[tuple[int, float], ...] = ((1, 10.0), (8, 12.0), (16, 16.0))
    prefill_ms_per_token: float = 0.1
    kv_ms_per_1k_tokens: float = 0.1
    jitter: float = 0.0
    seed: int = 0
    time_scale: float = 1.0
    stream_interval: int = 1  # tokens of a chunk; the first comes at once
    output_tokens: int | None = None  # every answer is so long, at most `max_tokens`; None: `max_tokens`

    def step_s(self, sequences: int, prefill_tokens: int, kv_tokens: int) -> float:
        """The duration of one step, in seconds."""
        segments = list(pairwise(self.step_ms))
        (low, low_ms), (high, high_ms) = next((s for s in segments if sequences <= s[1][0]), segments[-1])
        batch_ms = low_ms + (high_ms - low_ms) * (sequences - low) / (high - low)
        compute_ms = prefill_tokens * self.prefill_ms_per_token + kv_tokens / 1000 * self.kv_ms_per_1k_tokens
        return (batch_ms + compute_ms) / 1000 * self.time_scale


@dataclass(frozen=True, slots=True)
class _Answer:
    pieces: tuple[str, ...]  # one per token
    finish_reason: FinishReason


@dataclass(eq=False, slots=True)
class _Sequence:
    """A request in the engine."""

    prompt_tokens: int
    answer: _Answer
    priority: int
    queued_at: float
    prefilled: int = 0
    emitted: int = 0
    sent: int = 0
    admitted_at: float = 0.0
    first_token_at: float = 0.0
    chunks: asyncio.Queue[Chunk] = field(default_factory=asyncio.Queue)


class SimEngine:
    """The engine behind the seam, in real time or in the time of the given `now` and `sleep` (seconds).

    The text follows from the request's messages and seed alone. `fault` may name an outcome for a request,
    which then ends in it at once: so a test injects failures. On a card that is shared, `compute` takes the
    seconds of each step and returns when the card has done them (`SharedCard.part`).
    """

    name = "sim"
    precision = "sim"
    device = "sim"
    parameters = BASIC_PARAMETERS
    dead = False

    def __init__(
        self,
        model: str,
        profile: SimProfile = SimProfile(),
        *,
        fault: Callable[[GenerationRequest], Outcome | None] = lambda request: None,
        now: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        compute: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self.model = model
        self.profile = profile
        self._jitter = _jitter(profile)
        self._fault = fault
        self._now = now
        self._sleep = sleep
        self._compute = compute
        self._steps: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        # Dictionaries as ordered sets: a closed sequence leaves from anywhere.
        self._waiting: dict[_Sequence, None] = {}
        self._running: dict[_Sequence, None] = {}

    async def start(self) -> None:
        """Nothing to load."""
        self._steps = asyncio.create_task(self._run(), name="sim-engine")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer; see `Engine.generate`. More than `slots` requests wait their turn in order."""
        prompt_tokens = tokens.estimate(request.messages)
        if outcome := self._refusal(request, prompt_tokens):
            yield Chunk(outcome=outcome)
            return
        answer = _answer(request, self.profile, prompt_tokens)
        if self.profile.time_scale == 0:
            usage = Usage(prompt_tokens, len(answer.pieces))
            yield Chunk("".join(answer.pieces), usage.output_tokens, Completed(answer.finish_reason, usage))
            return
        sequence = _Sequence(prompt_tokens, answer, request.priority, queued_at=self._now())
        self._waiting[sequence] = None
        self._arrived.set()
        try:
            chunk = Chunk()
            while chunk.outcome is None:
                chunk = await sequence.chunks.get()
                yield chunk
        finally:
            self._leave(sequence)

    def _refusal(self, request: GenerationRequest, prompt_tokens: int) -> Outcome | None:
        if self._steps is None:
            return _STOPPED
        limit = self.profile.max_model_len
        if prompt_tokens >= limit:
            message = f"the prompt is {prompt_tokens} tokens long, the context holds {limit} with the answer"
            return Rejected("prompt_too_long", message, Usage(prompt_tokens))
        return self._fault(request)

    async def _run(self) -> None:
        """Plan a step, let its time pass, hand out its tokens; for ever."""
        due = self._now()
        while True:
            step = self._plan()
            if not step:
                self._arrived.clear()
                await self._arrived.wait()
                due = self._now()
                continue
            step_s = self.profile.step_s(len(step), sum(step.values()), self._kv_tokens()) * self._jitter()
            if self._compute:
                await self._compute(step_s)
            else:
                # Due times are added up, so that the timer's lateness does not slow the engine down.
                due += step_s
                await self._sleep(max(0.0, due - self._now()))
            for sequence, prefill_tokens in step.items():
                if sequence in self._running:  # not closed meanwhile
                    self._advance(sequence, prefill_tokens)

    def _plan(self) -> dict[_Sequence, int]:
        """The sequences of the next step, each with the prompt tokens it prefills (0: it decodes)."""
        while self._waiting and len(self._running) < self.profile.slots:
            sequence = self._next_waiting()
            del self._waiting[sequence]
            self._running[sequence] = None
            sequence.admitted_at = self._now()
        step: dict[_Sequence, int] = {}
        budget = self.profile.max_batched_tokens
        for sequence in self._running:
            missing = sequence.prompt_tokens - sequence.prefilled
            prefill_tokens = min(missing, budget, self.profile.long_prefill_tokens or budget)
            if prefill_tokens or not missing:
                step[sequence] = prefill_tokens
                budget = max(0, budget - (prefill_tokens or 1))
        return step

    def _next_waiting(self) -> _Sequence:
        if self.profile.scheduling is Scheduling.PRIORITY:
            return min(
                self._waiting, key=lambda sequence: sequence.priority
            )  # of equals, the first that came
        return next(iter(self._waiting))

    def _advance(self, sequence: _Sequence, prefill_tokens: int) -> None:
        sequence.prefilled += prefill_tokens
        if sequence.prefilled < sequence.prompt_tokens:
            return
        if not sequence.emitted:
            sequence.first_token_at = self._now()
        sequence.emitted += 1
        ended = sequence.emitted == len(sequence.answer.pieces)
        if ended:
            self._leave(sequence)
        tokens_due = sequence.emitted - sequence.sent
        if ended or not sequence.sent or tokens_due == self.profile.stream_interval:
            text = "".join(sequence.answer.pieces[sequence.sent : sequence.emitted])
            sequence.sent = sequence.emitted
            sequence.chunks.put_nowait(Chunk(text, tokens_due, self._completed(sequence) if ended else None))

    def _completed(self, sequence: _Sequence) -> Completed:
        timings = EngineTimings(
            engine_queue_ms=(sequence.admitted_at - sequence.queued_at) * 1000,
            prefill_ms=(sequence.first_token_at - sequence.admitted_at) * 1000,
            decode_ms=(self._now() - sequence.first_token_at) * 1000,
            preemptions=0,
        )
        usage = Usage(sequence.prompt_tokens, sequence.emitted)
        return Completed(sequence.answer.finish_reason, usage, timings)

    def _leave(self, sequence: _Sequence) -> None:
        self._waiting.pop(sequence, None)
        self._running.pop(sequence, None)

    def _kv_tokens(self) -> int:
        return sum(sequence.prefilled + sequence.emitted for sequence in self._running)

    def stats(self) -> EngineStats:
        """The state of the model."""
        capacity = self.profile.slots * self.profile.max_model_len
        return EngineStats(len(self._running), len(self._waiting), kv_usage=self._kv_tokens() / capacity)

    async def stop(self) -> None:
        """End open iterators as `Retryable`."""
        if self._steps is None:
            return
        self._steps.cancel()
        self._steps = None
        for sequence in (*self._running, *self._waiting):
            self._leave(sequence)
            sequence.chunks.put_nowait(Chunk(outcome=_STOPPED))


def build(config: EngineConfig) -> SimEngine:
    """The engine of `config`; its options are fields of `SimProfile`, and win."""
    policy = config.policy
    fields = {
        "slots": config.slots,
        "max_model_len": config.max_model_len,
        "max_batched_tokens": policy.batched_tokens,
        "long_prefill_tokens": policy.long_prefill_tokens,
        "scheduling": policy.scheduling,
    }
    return SimEngine(config.model, SimProfile(**fields | dict(config.options)))


def _jitter(profile: SimProfile) -> Callable[[], float]:
    """Draws factors of mean 1: log-normal ones, since no step takes less than no time."""
    if not profile.jitter:
        return lambda: 1.0
    variance = math.log1p(profile.jitter**2)
    draw = random.Random(profile.seed).lognormvariate  # noqa: S311 - noise, guards nothing
    return lambda: draw(-variance / 2, math.sqrt(variance))


def _answer(request: GenerationRequest, profile: SimProfile, prompt_tokens: int) -> _Answer:
    """The text of `request`, a piece per token: the prompt's fingerprint, then words without repetition."""
    sampling = request.sampling
    wished = min(sampling.max_tokens, profile.output_tokens or sampling.max_tokens)
    length = max(1, min(wished, profile.max_model_len - prompt_tokens))
    prompt = "\0".join(message.content for message in request.messages)
    fingerprint = zlib.crc32(f"{sampling.seed}\0{prompt}".encode(errors="replace"))
    start = fingerprint % len(_PIECES)
    end = start + length - 1
    pieces = (f"{fingerprint:08x} ", *(_PIECES * (1 + end // len(_PIECES)))[start:end])
    ended = sampling.max_tokens > length == wished
    answer = _Answer(pieces, FinishReason.STOP if ended else FinishReason.LENGTH)
    return _cut(answer, sampling.stop) if sampling.stop else answer


def _cut(answer: _Answer, stops: tuple[str, ...]) -> _Answer:
    """The answer up to the first stop string; the token in which that begins is the last one."""
    text = "".join(answer.pieces)
    end = min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)
    if end is None:
        return answer
    kept: list[str] = []
    for piece in answer.pieces:
        kept.append(piece[:end])
        end -= len(piece)
        if end < 0:
            break
    return _Answer(tuple(kept), FinishReason.STOP)
