"""One attempt: what it does when it is closed, and what each outcome becomes."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from jobs.domain.jobs import Claim, Move, new_id
from jobs.domain.lanes import LANES
from jobs.domain.outcomes import (
    Cancelled,
    CloseReason,
    Completed,
    FinishReason,
    Outcome,
    Rejected,
    Retryable,
    Usage,
)
from jobs.domain.requests import GenerationRequest
from jobs.settings import LeaseSettings
from workers.attempt import Attempt, Identity
from workers.engines.seam import Chunk, EngineStats
from workers.gate import EngineLoad, Gate

DONE = Completed(FinishReason.STOP, Usage(3, 2, 1))
IDENTITY = Identity("w", "fake", "none", "none")


class FakeEngine:
    """Streams what it is given; a `None` waits for ever."""

    name = model = precision = device = "fake"

    def __init__(self, *chunks: Chunk | Exception | None, on_last: Callable[[], None] = lambda: None) -> None:
        self._chunks, self._on_last = chunks, on_last
        self.freed = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(kv_usage=0.25)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        try:
            for chunk in self._chunks:
                if chunk is None:
                    await asyncio.Event().wait()
                elif isinstance(chunk, Exception):
                    raise chunk
                else:
                    if chunk.outcome:
                        self._on_last()
                    yield chunk
        finally:
            self.freed = True


class Sink:
    def __init__(self) -> None:
        self.pieces: list[str] = []

    def text(self, piece: str, *, last: bool = False) -> None:
        self.pieces.append(piece)


def attempt(deadline_in_s: float = 60, failures: int = 0, max_attempts: int = 3) -> Attempt:
    request = {"messages": [{"role": "user", "content": "hi"}], "sampling": {"max_tokens": 5}}
    claim = Claim(new_id(), 1, failures, max_attempts, "warm", 5, "m", request, 3, 0, 1.0, 2.0, deadline_in_s)
    return Attempt(claim, LANES["warm"], 0.001, Sink())


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(5):
            return await work()

    return asyncio.run(bounded())


def gate() -> Gate:
    return Gate(LANES["warm"], 8, EngineLoad())


@pytest.mark.parametrize("reason", list(CloseReason))
def test_closing_frees_the_sequence_and_names_the_reason(reason: CloseReason) -> None:
    made, engine = attempt(), FakeEngine(Chunk("a", 1), None)

    async def work() -> Outcome:
        task = asyncio.create_task(made.run(gate(), engine))
        while not made._first_at:
            await asyncio.sleep(0)
        made.close(reason)
        return await task

    assert run(work) == Cancelled(reason)
    assert engine.freed


def test_a_close_in_the_very_moment_of_the_last_chunk_does_not_cancel_what_comes_after() -> None:
    made = attempt()
    engine = FakeEngine(Chunk("a", 1), Chunk("b", 1, DONE), on_last=lambda: made.close(CloseReason.SHUTDOWN))

    async def work() -> Outcome:
        outcome = await made.run(gate(), engine)
        await asyncio.sleep(0.01)  # a cancel that was left over would land here
        return outcome

    assert run(work) in (DONE, Cancelled(CloseReason.SHUTDOWN))


def test_a_passed_deadline_closes() -> None:
    made = attempt(deadline_in_s=0.01)
    assert run(lambda: made.run(gate(), FakeEngine(None))) == Cancelled(CloseReason.DEADLINE)


def test_a_bug_of_the_engine_is_retryable_and_its_words_stay_out_of_the_record() -> None:
    made = attempt()
    outcome = run(lambda: made.run(gate(), FakeEngine(ValueError("the prompt was: secret"))))
    assert isinstance(outcome, Retryable)
    assert "secret" not in outcome.message


@pytest.mark.parametrize(
    ("outcome", "failures", "move", "code"),
    [
        (DONE, 0, Move.SUCCEED, None),
        (Rejected("prompt_too_long", "x"), 0, Move.FAIL, "prompt_too_long"),
        (Retryable("engine_error", "x"), 1, Move.RETRY, "engine_error"),
        (Retryable("engine_error", "x"), 2, Move.FAIL, "engine_error"),
        (Cancelled(CloseReason.CANCEL), 0, None, None),
        (Cancelled(CloseReason.LEASE_LOST), 0, None, None),
        (Cancelled(CloseReason.SHUTDOWN), 0, Move.HAND_BACK, None),
        (Cancelled(CloseReason.DEADLINE), 0, Move.EXPIRE, "deadline_exceeded"),
        (Cancelled(CloseReason.TIME_LIMIT), 0, Move.FAIL, "time_limit"),
    ],
)
def test_each_outcome_has_its_ending(
    outcome: Outcome, failures: int, move: Move | None, code: str | None
) -> None:
    ending = attempt(failures=failures).ending(outcome, IDENTITY, LeaseSettings())
    assert (ending.move, ending.error_code) == (move, code)
    assert (ending.delay_s is not None) == (move is Move.RETRY)
    assert ending.announced == (move is Move.HAND_BACK)
    assert (ending.answer is not None) == (move is Move.SUCCEED)


def test_the_latency_record_adds_up() -> None:
    made = attempt()
    run(lambda: made.run(gate(), FakeEngine(Chunk("a", 1), Chunk("b", 1, DONE))))
    record = made.ending(DONE, IDENTITY, LeaseSettings()).latency
    assert record.ttft_ms is not None
    assert record.total_ms is not None
    assert record.queue_ms == 1.0
    assert record.queue_ms < record.ttft_ms < record.total_ms
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (3, 2, 1)
    assert (record.batch_size, record.kv_usage) == (1, 0.25)
