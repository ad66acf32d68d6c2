"""Answers documents that are longer than their lane: in windows, merged by one more prompt."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import structlog

from jobs.domain import windows
from jobs.domain.lanes import LanePolicy
from jobs.domain.outcomes import Completed, EngineTimings, Outcome, Rejected, Retryable, Usage
from jobs.domain.policies import WindowPolicy
from jobs.domain.requests import GenerationRequest, Message, Sampling
from jobs.tokenizer import TokenCounter
from workers.engines.seam import Chunk

INSTRUCTION_TOKENS = 256  # what is longer, at a document's beginning or end, is no instruction
_LEAST_TOKENS = 64  # below that there is no room for anything sensible
_FRAME_TOKENS = 32  # what a template or a heading adds to a message, generously
_LABEL_TOKENS = 8  # what stands before each of the answers that are merged, generously
_INEXACT = 2  # how far an estimate may be off, as a factor (2.3 for Chinese with a small English vocabulary)
_MERGE = (
    "The document was too long to be read at once. Here are the answers to its parts, in order. Merge them"
    " into one answer for the whole document, in the same language, and say nothing twice."
)

Number = TypeVar("Number", int, float)
log = structlog.get_logger()
Generate = Callable[[GenerationRequest], AsyncGenerator[Chunk, None]]


class Windows:
    """A lane's requests, the over-long ones in windows."""

    def __init__(self, policy: LanePolicy, counter: TokenCounter, generate: Generate) -> None:
        """Cut as `policy.windows` says (None: never), count by `counter`, answer each part by `generate`."""
        self._policy, self._counter, self._generate = policy, counter, generate
        # A job's windows share its one admission: together they take its share of the engine's sequences.
        self._at_once = max(1, policy.engine.sequences // policy.limit)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        """As `Engine.generate`. What fits with its answer goes through whole; the engine has the last word.

        Of a windowed answer only the merging is streamed. Its usage and timings are the sums over all parts:
        the engine's work, which is more than the time that passed where parts ran at once.
        """
        policy = self._policy.windows if request.sampling.windows else None
        cut = policy is not None and await self._exceeds_lane(request)
        if not cut:
            async with aclosing(self._generate(request)) as stream:
                async for chunk in stream:
                    cut = policy is not None and _is_too_long(chunk.outcome)
                    if not cut:
                        yield chunk
        if cut and policy is not None:
            async with aclosing(self._windowed(request, policy)) as stream:
                async for chunk in stream:
                    yield chunk

    async def _exceeds_lane(self, request: GenerationRequest) -> bool:
        room = self._policy.max_model_len - request.sampling.max_tokens
        # No token is shorter than a byte, so most requests need no counting.
        sizes = (len(message.content.encode(errors="replace")) for message in request.messages)
        if sum(size + _FRAME_TOKENS for size in sizes) <= room:
            return False
        return await asyncio.to_thread(self._counter.count, request.messages) > room

    async def _windowed(
        self, request: GenerationRequest, policy: WindowPolicy
    ) -> AsyncGenerator[Chunk, None]:
        document = await asyncio.to_thread(self._document, request, policy)
        if document is None:
            yield Chunk(outcome=Rejected("prompt_too_long", "what is repeated leaves no room for windows"))
            return
        log.info("document.windowed", job_id=request.id, windows=len(document.texts))
        spent: list[Completed] = []
        answers, failed = await self._answers(document.parts(), spent)
        room = document.room
        while failed is None:
            groups = await asyncio.to_thread(self._grouped, answers, room)
            if len(groups) > 1:
                merged, failed = await self._answers(document.merges(groups), spent)
                answers = merged or answers
            else:
                async with aclosing(self._generate(document.last_merge(answers))) as stream:
                    async for chunk in stream:
                        failed = chunk.outcome if _is_too_long(chunk.outcome) else None
                        if failed is None:
                            yield replace(chunk, outcome=_total(chunk.outcome, spent, len(document.texts)))
                if failed is None:
                    return
            if _is_too_long(failed) and room >= 2 * _LEAST_TOKENS:
                room, failed = room // 2, None  # the engine holds less than its lane says
        yield Chunk(outcome=failed)

    def _document(self, request: GenerationRequest, policy: WindowPolicy) -> "_Document | None":
        """The request cut into windows; None where what is repeated leaves no room for any."""
        place = windows.document_of(request.messages)
        original = request.messages[place]

        def is_short(text: str) -> bool:
            return self._counter.count_texts([text])[0] <= INSTRUCTION_TOKENS

        head, body, tail = windows.instructions(original.content, is_short)
        repeated = list(request.messages)
        repeated[place] = Message(original.role, f"{_MERGE}{head}{tail}")
        caution = 1 if self._counter.is_exact else _INEXACT
        room = (self._policy.max_model_len - request.sampling.max_tokens) // caution
        room -= self._counter.count(repeated) + _FRAME_TOKENS
        if room < _LEAST_TOKENS:
            return None
        size = min(policy.tokens, room)
        fitting = WindowPolicy(size, min(policy.overlap, size // 2))
        texts = windows.windows(body, fitting, self._counter.count_texts)
        return _Document(request, place, head, tail, texts, room)

    def _grouped(self, answers: Sequence[str], room: int) -> list[list[str]]:
        """Neighbours that fit into one merging; at least two each, so that merging comes to an end."""
        costs = [cost + _LABEL_TOKENS for cost in self._counter.count_texts(answers)]
        spans = windows.pack(costs, room, 0)
        if len(spans) == len(answers) > 1:
            spans = [(start, start + 2) for start in range(0, len(answers), 2)]
        return [list(answers[start:end]) for start, end in spans]

    async def _answers(
        self, requests: Iterable[GenerationRequest], spent: list[Completed]
    ) -> tuple[list[str], Outcome | None]:
        """The answers in order, a few at once, or how the first of them failed; that ends the others."""
        places = asyncio.Semaphore(self._at_once)

        async def answer(request: GenerationRequest) -> str:
            async with places:
                text, outcome = await _read(self._generate(request))
            if not isinstance(outcome, Completed):
                raise _Failed(outcome)
            spent.append(outcome)
            return text

        try:
            return await _all_or_none([answer(request) for request in requests]), None
        except _Failed as failed:
            return [], failed.outcome


@dataclass(frozen=True, slots=True)
class _Document:
    """A request that was cut: what stands around the document, its windows, and the prompts they make.

    `room` is how many tokens of document, or of answers, one prompt holds.
    """

    request: GenerationRequest
    place: int
    head: str
    tail: str
    texts: list[str]
    room: int

    def parts(self) -> list[GenerationRequest]:
        """One request for each window."""
        count = len(self.texts)
        return [
            self._ask(
                f"w{number}", f"[Part {number} of {count} of a long document]\n\n{text}", self._partial()
            )
            for number, text in enumerate(self.texts, 1)
        ]

    def merges(self, groups: Sequence[Sequence[str]]) -> list[GenerationRequest]:
        """One request for each group of answers."""
        return [
            self._ask(f"m{number}of{len(groups)}", _merging(group), self._partial())
            for number, group in enumerate(groups, 1)
        ]

    def last_merge(self, answers: Sequence[str]) -> GenerationRequest:
        """The request whose answer is the job's."""
        return self._ask("", _merging(answers), self.request.sampling)

    def _partial(self) -> Sampling:
        """The job's sampling for an answer that only feeds a merging, where four of them must fit."""
        sampling = self.request.sampling
        longest = min(sampling.max_tokens, self.room // 4)
        return replace(
            sampling, max_tokens=longest, n=1, logprobs=None, top_logprobs=None, response_format=None
        )

    def _ask(self, suffix: str, text: str, sampling: Sampling) -> GenerationRequest:
        request, messages = self.request, list(self.request.messages)
        content = "\n\n".join(filter(None, (self.head.strip(), text, self.tail.strip())))
        messages[self.place] = replace(messages[self.place], content=content)
        name = f"{request.id}-{suffix}" if suffix else request.id
        return replace(request, id=name, messages=tuple(messages), sampling=sampling)


class _Failed(Exception):
    """A part ended otherwise than with an answer; so does the whole."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome or Retryable("engine_error", "the engine's stream ended without an outcome")
        super().__init__(self.outcome)


def _merging(answers: Sequence[str]) -> str:
    parts = (f"[Part {number}]\n{answer.strip()}" for number, answer in enumerate(answers, 1))
    return "\n\n".join((_MERGE, *parts))


async def _read(stream: AsyncGenerator[Chunk, None]) -> tuple[str, Outcome | None]:
    text, outcome = "", None
    async with aclosing(stream):
        async for chunk in stream:
            text += chunk.text
            outcome = chunk.outcome
    return text, outcome


async def _all_or_none(work: Sequence[Coroutine[Any, Any, str]]) -> list[str]:
    """All results; the first that raises, or a cancel, ends all the others before it goes on."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _is_too_long(outcome: Outcome | None) -> bool:
    return isinstance(outcome, Rejected) and outcome.code == "prompt_too_long"


def _total(outcome: Outcome | None, spent: Sequence[Completed], count: int) -> Outcome | None:
    """The last merging's outcome with all that the parts before it took."""
    if not isinstance(outcome, Completed):
        return outcome
    every = [*spent, outcome]
    usage = Usage(
        prompt_tokens=sum(one.usage.prompt_tokens for one in every),
        output_tokens=sum(one.usage.output_tokens for one in every),
        cached_tokens=sum(one.usage.cached_tokens for one in every),
    )
    timings = EngineTimings(
        engine_queue_ms=_sum(one.timings.engine_queue_ms for one in every),
        prefill_ms=_sum(one.timings.prefill_ms for one in every),
        decode_ms=_sum(one.timings.decode_ms for one in every),
        preemptions=_sum(one.timings.preemptions for one in every),
    )
    return replace(outcome, usage=usage, timings=timings, windows=count)


def _sum(values: Iterable[Number | None]) -> Number | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None
