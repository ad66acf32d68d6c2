"""One attempt at a job: through the gate, through the engine, to its ending; outcomes stay values."""

import asyncio
import random
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import structlog

from jobs.domain import requests
from jobs.domain.jobs import Claim, Move, retry_delay_s
from jobs.domain.lanes import LanePolicy
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import (
    Cancelled,
    CloseReason,
    Completed,
    EngineTimings,
    Outcome,
    Rejected,
    Retryable,
)
from jobs.settings import LeaseSettings
from jobs.store.records import Answer, Ending
from workers.engines.seam import ENGINE_DEAD, Chunk, EngineStats
from workers.gate import Gate

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Identity:
    """What this worker's latency records say of it."""

    worker: str
    engine: str
    precision: str
    gpu: str


class Answers(Protocol):
    """Answers requests, as an engine does."""

    def generate(self, request: requests.GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """Stream one answer."""
        ...

    def stats(self) -> EngineStats:
        """The engine's state."""
        ...


class TextSink(Protocol):
    """Takes the text while it comes."""

    def text(self, piece: str, *, last: bool = False) -> None:
        """Take one piece; the `last` ends the answer."""
        ...


# What a closed attempt means for its job: the move, and the error that the job then shows.
_CLOSED: dict[CloseReason, tuple[Move | None, str | None, str | None]] = {
    CloseReason.CANCEL: (None, None, None),
    CloseReason.LEASE_LOST: (None, None, None),
    CloseReason.SHUTDOWN: (Move.HAND_BACK, None, None),
    CloseReason.DEADLINE: (Move.EXPIRE, "deadline_exceeded", "the deadline passed while the job ran"),
    CloseReason.TIME_LIMIT: (Move.FAIL, "time_limit", "the attempt ran longer than its lane allows"),
}


class Attempt:
    """One claimed job in this worker. `close` ends it early; all times are monotonic, in seconds."""

    def __init__(self, claim: Claim, policy: LanePolicy, claim_s: float, sink: TextSink) -> None:
        """`claim_s` is how long the claim's transaction took."""
        self.claim = claim
        self._policy, self._sink = policy, sink
        self._claim_ms, self._claimed_at = claim_s * 1_000, time.monotonic()
        self._admitted_at = self._first_at = self._ended_at = 0.0
        self._batch_size: int | None = None
        self._kv_usage: float | None = None
        self._text: list[str] = []
        self._closed: CloseReason | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[uuid.UUID, int]:
        """The job and the attempt's number."""
        return self.claim.id, self.claim.attempt

    def close(self, reason: CloseReason) -> None:
        """End the attempt now, the engine's sequence included; without effect once the text has ended."""
        if self._task is not None and self._closed is None:
            self._closed = reason
            self._task.cancel()

    async def run(self, gate: Gate, engine: Answers) -> Outcome:
        """Go through the gate and the engine; the deadline and the time limit close the attempt."""
        loop = asyncio.get_running_loop()
        deadline = (max(self.claim.deadline_in_s, 0), CloseReason.DEADLINE)
        after_s, reason = min(deadline, (self._policy.time_limit_s, CloseReason.TIME_LIMIT))
        timer = loop.call_later(after_s, self.close, reason)
        self._task = task = asyncio.current_task()
        try:
            self._batch_size = await gate.enter(self.claim)
            try:
                outcome = await self._generate(engine)
            finally:
                gate.leave()
            if self._closed is not None:
                await asyncio.sleep(0)  # closed while the last chunk came: the cancel lands here, not later
            return outcome
        except asyncio.CancelledError:
            if self._closed is None or task is None:
                raise
            task.uncancel()
            return Cancelled(self._closed)
        except Exception as error:  # the engine seam says these are bugs; one of them must not end the worker
            log.error("attempt.crashed", job_id=str(self.claim.id), exc_info=error)
            return Retryable("internal_error", f"the engine raised {type(error).__name__}")
        finally:
            self._task = None
            timer.cancel()
            self._ended_at = time.monotonic()

    async def _generate(self, engine: Answers) -> Outcome:
        messages, sampling = requests.from_json(self.claim.request)
        request = requests.GenerationRequest(str(self.claim.id), messages, sampling, self.claim.priority)
        self._admitted_at = time.monotonic()
        self._kv_usage = engine.stats().kv_usage
        stream: AsyncGenerator[Chunk, None] = engine.generate(request)
        async with aclosing(stream):
            async for chunk in stream:
                if chunk.tokens and not self._first_at:
                    self._first_at = time.monotonic()
                self._text.append(chunk.text)
                self._sink.text(chunk.text, last=chunk.outcome is not None)
                if chunk.outcome is not None:
                    return chunk.outcome
        return Retryable("engine_error", "the engine's stream ended without an outcome")

    def ending(self, outcome: Outcome, identity: Identity, lease: LeaseSettings) -> Ending:
        """What to record of this outcome."""
        job_id, attempt = self.key
        latency = self._latency(outcome, identity)
        match outcome:
            case Completed():
                answer = Answer(
                    "".join(self._text),
                    outcome.finish_reason,
                    outcome.usage,
                    outcome.choices,
                    outcome.windows,
                )
                return Ending(job_id, attempt, Move.SUCCEED, latency, answer)
            case Rejected():
                return Ending(job_id, attempt, Move.FAIL, latency, None, outcome.code, outcome.message)
            case Retryable():
                failures = self.claim.failures + 1
                spent = failures >= self.claim.max_attempts
                jitter = random.random()  # noqa: S311 - spreads retries, guards nothing
                delay_s = retry_delay_s(failures, jitter, lease.retry_base_s, lease.retry_cap_s)
                if outcome.code == ENGINE_DEAD:
                    delay_s = 0.0  # the others of the lane can have it at once
                return Ending(
                    job_id,
                    attempt,
                    Move.FAIL if spent else Move.RETRY,
                    latency,
                    error_code=outcome.code,
                    error_message=outcome.message,
                    delay_s=None if spent else delay_s,
                )
            case Cancelled():
                move, code, message = _CLOSED[outcome.reason]
                return Ending(
                    job_id,
                    attempt,
                    move,
                    latency,
                    error_code=code,
                    error_message=message,
                    announced=move is Move.HAND_BACK,
                )

    def _latency(self, outcome: Outcome, identity: Identity) -> LatencyRecord:
        timings = outcome.timings if isinstance(outcome, Completed) else EngineTimings()
        admitted, first = self._admitted_at or None, self._first_at or None
        before_ms = self.claim.queue_ms + self._claim_ms
        recording_at = time.monotonic()
        usage = outcome.usage
        return LatencyRecord(
            outcome=_name(outcome),
            lane=self.claim.lane,
            worker=identity.worker,
            gpu=identity.gpu,
            engine=identity.engine,
            precision=identity.precision,
            queue_ms=self.claim.queue_ms,
            claim_ms=self._claim_ms,
            admission_ms=_ms(self._claimed_at, admitted),
            engine_queue_ms=timings.engine_queue_ms,
            prefill_ms=_or(timings.prefill_ms, _ms(admitted, first)),
            ttft_ms=before_ms + (first - self._claimed_at) * 1_000 if first else None,
            decode_ms=_or(timings.decode_ms, _ms(first, self._ended_at)),
            record_ms=_ms(self._ended_at, recording_at),
            total_ms=self.claim.age_ms + self._claim_ms + (recording_at - self._claimed_at) * 1_000,
            prompt_tokens=usage.prompt_tokens or self.claim.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            batch_size=self._batch_size,
            kv_usage=self._kv_usage,
            preemptions=timings.preemptions,
        )


def _name(outcome: Outcome) -> str:
    match outcome:
        case Completed():
            return "succeeded"
        case Cancelled():
            return outcome.reason.value
        case Rejected() | Retryable():
            return outcome.code


def _ms(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else (end - start) * 1_000


def _or(value: float | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value
