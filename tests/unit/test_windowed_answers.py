"""Documents longer than their lane are answered in windows and merged; all else goes through as it is."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import pairwise

from jobs.domain import tokens
from jobs.domain.lanes import LanePolicy
from jobs.domain.outcomes import (
    Choice,
    Completed,
    EngineTimings,
    FinishReason,
    Outcome,
    Rejected,
    Retryable,
    Usage,
)
from jobs.domain.policies import EnginePolicy, GuardPolicy, WindowPolicy
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from workers.answering import Answering
from workers.engines.seam import BASIC_PARAMETERS, Chunk, EngineStats

POLICY = LanePolicy(
    "cold",
    frozenset(),
    None,
    None,
    max_model_len=1_000,
    limit=2,
    window_ms=0,
    engine=EnginePolicy(sequences=6),
    guards=GuardPolicy(repetition=False),
    windows=WindowPolicy(tokens=100, overlap=20),
)
TASK = "Which numbers are named?"
# 1,800 tokens by the estimate, nine sentences to a window of 100.
DOCUMENT = (
    f"{TASK}\n\n"
    + "".join(f"The number {n:04} is named here in this line. " for n in range(150))
    + "\n\nThanks."
)


class Reader:
    """An engine of `limit` tokens that answers every prompt with `words` words, and keeps the prompts."""

    name = model = precision = device = "reader"
    parameters = BASIC_PARAMETERS | {"n", "logprobs", "response_format"}
    dead = False

    def __init__(self, limit: int = 1_000, words: int = 4, fails: str = "") -> None:
        self.limit, self.words, self.fails = limit, words, fails
        self.requests: list[GenerationRequest] = []
        self.running = self.most = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats(self.running)

    def prompts(self, marker: str) -> list[str]:
        return [text for one in self.requests if marker in (text := one.messages[-1].content)]

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await asyncio.sleep(0)
            yield Chunk("some ", 1) if not (outcome := self._refused(request)) else Chunk(outcome=outcome)
            if outcome is None:
                await asyncio.sleep(0)
                count = min(self.words, request.sampling.max_tokens) - 1
                usage = Usage(tokens.estimate(request.messages), count + 1, 3)
                done = Completed(FinishReason.STOP, usage, EngineTimings(1.0, 10.0, 100.0))
                choices = tuple(Choice("x", FinishReason.STOP) for _ in range(request.sampling.n))
                yield Chunk("word " * count, count, replace(done, choices=choices))
        finally:
            self.running -= 1

    def _refused(self, request: GenerationRequest) -> Outcome | None:
        if tokens.estimate(request.messages) >= self.limit:
            return Rejected("prompt_too_long", "too long")
        if self.fails and self.fails in request.messages[-1].content:
            return Retryable("engine_error", "it broke")
        return None


def ask(
    engine: Reader, content: str = DOCUMENT, policy: LanePolicy = POLICY, **sampling: object
) -> list[Chunk]:
    messages = (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, content))
    request = GenerationRequest("job", messages, Sampling(**{"max_tokens": 50, **sampling}))  # type: ignore[arg-type]  # names as given

    async def read() -> list[Chunk]:
        return [chunk async for chunk in Answering(engine, policy).generate(request)]

    return asyncio.run(read())


def completed(chunks: list[Chunk]) -> Completed:
    outcome = chunks[-1].outcome
    assert isinstance(outcome, Completed), outcome
    return outcome


def test_a_long_document_is_read_in_windows_and_merged() -> None:
    engine = Reader()
    outcome = completed(ask(engine))
    parts = engine.prompts("of a long document]")
    assert outcome.windows == len(parts) > 15
    for number in range(150):
        assert any(f"number {number:04} is named here in this line." in part for part in parts)
    for part, following in pairwise(parts):
        assert part.rsplit("The number", 1)[1].split("\n")[0] in following, "they overlap"
    assert all(part.startswith(TASK) and part.endswith("Thanks.") for part in parts)
    assert all(request.messages[0].content == "Be brief." for request in engine.requests)
    merge = engine.requests[-1].messages[-1].content
    assert merge.startswith(TASK) and merge.count("some word word word") == len(parts)
    assert max(tokens.estimate(request.messages) for request in engine.requests[:-1]) < 200


def test_usage_and_timings_are_the_sums_and_only_the_merging_is_streamed() -> None:
    engine = Reader()
    chunks = ask(engine)
    outcome, calls = completed(chunks), len(engine.requests)
    assert "".join(chunk.text for chunk in chunks) == "some word word word "
    prompts = sum(tokens.estimate(request.messages) for request in engine.requests)
    assert outcome.usage == Usage(prompts, 4 * calls, 3 * calls)
    assert outcome.timings == EngineTimings(calls * 1.0, calls * 10.0, calls * 100.0)


def test_windows_run_at_once_within_the_jobs_share_of_the_engine() -> None:
    engine = Reader()
    ask(engine)
    assert engine.most == 3, "6 sequences, 2 jobs at once"


def test_what_fits_is_never_cut() -> None:
    engine = Reader()
    chunks = ask(engine, "A short text. " * 20)
    assert completed(chunks).windows == 0
    assert len(engine.requests) == 1


def test_the_engine_has_the_last_word_on_what_fits() -> None:
    engine = Reader(limit=700)
    fitting = ask(engine, "It is said here once. " * 100)  # 600 tokens
    assert (completed(fitting).windows, len(engine.requests)) == (0, 1)
    engine = Reader(limit=500)
    assert completed(ask(engine, "It is said here once. " * 100)).windows > 1
    assert len(engine.requests[0].messages[1].content) == 2_200, "whole at first"


def test_without_windows_it_is_refused() -> None:
    for policy, wanted in ((replace(POLICY, windows=None), True), (POLICY, False)):
        engine = Reader()
        outcome = ask(engine, policy=policy, windows=wanted)[-1].outcome
        assert isinstance(outcome, Rejected) and outcome.code == "prompt_too_long"
        assert len(engine.requests) == 1


def test_many_long_answers_are_merged_in_rounds() -> None:
    engine = Reader(words=60)
    outcome = completed(ask(engine, max_tokens=100))
    merges = engine.prompts("Merge them")
    assert len(merges) > 2
    assert outcome.windows == len(engine.requests) - len(merges)
    assert max(tokens.estimate(request.messages) for request in engine.requests) < 1_000 - 100


def test_an_engine_that_holds_less_than_its_lane_says_is_asked_less() -> None:
    engine = Reader(limit=250, words=60)
    outcome = completed(ask(engine, max_tokens=100))
    assert outcome.windows > 15
    assert "word word" in engine.requests[-1].messages[-1].content


def test_even_answers_too_long_for_any_merging_come_to_an_end() -> None:
    for limit in (1_000, 250, 120):
        chunks = ask(Reader(limit=limit, words=10_000), max_tokens=800)
        assert chunks[-1].outcome is not None


def test_one_windows_failure_is_the_jobs_and_ends_the_others() -> None:
    engine = Reader(fails="number 0070")
    chunks = ask(engine)
    assert chunks == [Chunk(outcome=Retryable("engine_error", "it broke"))]
    assert engine.running == 0
    assert len(engine.requests) < 15


def test_only_the_last_merging_has_what_the_caller_asked_of_the_answer() -> None:
    engine = Reader()
    form = {"type": "json_object"}
    outcome = completed(ask(engine, n=2, logprobs=True, response_format=form, temperature=0.5))
    assert len(outcome.choices) == 2
    *parts, last = (request.sampling for request in engine.requests)
    assert (last.n, last.logprobs, last.response_format) == (2, True, form)
    assert {(one.n, one.logprobs, one.response_format, one.temperature) for one in parts} == {
        (1, None, None, 0.5)
    }


def test_what_leaves_no_room_for_windows_is_refused() -> None:
    outcome = ask(Reader(), max_tokens=990)[-1].outcome
    assert isinstance(outcome, Rejected) and outcome.code == "prompt_too_long"


def test_closing_ends_all_windows() -> None:
    async def close() -> None:
        engine = Reader()
        request = GenerationRequest("job", (Message(Role.USER, DOCUMENT),), Sampling(max_tokens=50))
        reading = asyncio.ensure_future(anext(Answering(engine, POLICY).generate(request)))
        while engine.running < 3:
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        assert engine.running == 0
        assert len(engine.requests) <= 6

    asyncio.run(close())
