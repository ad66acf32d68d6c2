"""Chat completions, driven by the official client: waited for, streamed, left, repeated, refused."""

import asyncio
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from sqlalchemy import text

from jobs.domain.jobs import Move
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import Choice, FinishReason, TokenLogprob, Usage
from jobs.live import LiveEvent
from jobs.store import records
from jobs.store.records import Answer, Ending
from tests.api import Api
from tests.processes import Processes
from tests.responses_rig import refused
from tests.waiting import until

MODEL = "SmolLM2-135M-Instruct"
ASKED: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "What is a queue?"}]}
KEY = {"Idempotency-Key": "once"}
SLOW = 4.0  # a time scale of the sim engine: about 40 ms a token


class Rig:
    """A client of the official package whose calls run beside the test, and a worker by hand."""

    def __init__(self, api: Api, threads: ThreadPoolExecutor) -> None:
        self.api, self.worker, self._threads = api, api.worker(), threads
        self.client = OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)

    def create(self, **given: Any) -> Any:
        """Ask, and wait for the answer; or get the stream."""
        return self.client.chat.completions.create(**ASKED | given)

    def ask(self, **given: Any) -> "tuple[str, Future[Any]]":
        """The id of the job that asking made, and the answer to come; of a stream its chunks."""
        before = self.ids()

        def call() -> Any:
            answer = self.create(**given)
            return list(answer) if given.get("stream") else answer

        answer = self._threads.submit(call)
        [job_id] = until(lambda: self._new(before, answer), what="a job")
        return job_id, answer

    def ids(self) -> set[str]:
        """The ids of all jobs."""
        with self.api.engine.begin() as connection:
            return {str(row.id) for row in connection.execute(text("SELECT id FROM jobs"))}

    def _new(self, before: set[str], answer: "Future[Any]") -> set[str]:
        if answer.done():
            answer.result()  # it was refused
        return self.ids() - before

    def job(self, job_id: str) -> Any:
        """The job's row."""
        with self.api.engine.begin() as connection:
            return connection.execute(text("SELECT * FROM jobs WHERE id = :id"), {"id": job_id}).one()

    def end(
        self,
        job_id: str,
        output: str = "A line.",
        *,
        attempt: int = 1,
        reason: FinishReason = FinishReason.STOP,
        choices: tuple[Choice, ...] = (),
    ) -> None:
        """Answer a job that was claimed."""
        self._record(job_id, attempt, Move.SUCCEED, answer=Answer(output, reason, Usage(12, 4, 8), choices))

    def fail(self, job_id: str, code: str) -> None:
        """End a job that was claimed without an answer."""
        self._record(job_id, 1, Move.FAIL, error_code=code, error_message="It went wrong")

    def _record(self, job_id: str, attempt: int, move: Move, **how: Any) -> None:
        with self.api.engine.begin() as connection:
            latency = LatencyRecord("succeeded", "warm", total_ms=12.5)
            records.record(connection, [Ending(uuid.UUID(job_id), attempt, move, latency, **how)])
        self.worker.hint_end(job_id)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def rig(api: Api, threads: ThreadPoolExecutor) -> Rig:
    return Rig(api, threads)


def answered(rig: Rig, *end: Any, asked: dict[str, Any] | None = None, **how: Any) -> Any:
    """The answer to a conversation that the worker by hand ends so."""
    job_id, answer = rig.ask(**asked or {})
    rig.worker.claim(job_id)
    rig.end(job_id, *end, **how)
    return answer.result(20)


# --- answers --------------------------------------------------------------------------------------------


def test_a_conversation_is_answered_in_the_lane_of_its_tier(rig: Rig) -> None:
    turns = [
        {"role": "developer", "content": "Be short."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}],
        },
    ]
    job_id, answer = rig.ask(
        messages=turns,
        service_tier="priority",
        max_completion_tokens=50,
        temperature=0.5,
        stop=["END"],
        metadata={"ticket": "4711"},
        user="u1",
        store=False,
    )
    job = rig.job(job_id)
    assert (job.lane, job.kind, job.surface, job.metadata) == ("hot", "chat", "chat", {"ticket": "4711"})
    assert [(turn["role"], turn["content"]) for turn in job.request["messages"]] == [
        ("system", "Be short."),
        ("user", "What is this?"),
    ]
    sampling = job.request["sampling"]
    assert (sampling["max_tokens"], sampling["temperature"], sampling["stop"]) == (50, 0.5, ["END"])
    rig.worker.claim(job_id)
    rig.end(job_id, "A line.")
    completion: ChatCompletion = answer.result(20)
    assert (completion.id, completion.object) == (f"chatcmpl-{uuid.UUID(job_id).hex}", "chat.completion")
    assert (completion.model, completion.service_tier) == (MODEL, "priority")
    assert completion.created == int(job.created_at.timestamp())
    [choice] = completion.choices
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "A line.")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    usage = completion.usage
    assert usage
    assert usage.prompt_tokens_details
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (12, 4, 16)
    assert usage.prompt_tokens_details.cached_tokens == 8


def test_an_answer_can_be_sent_back_as_it_came(rig: Rig) -> None:
    first = answered(rig)
    turns = [*ASKED["messages"], first.choices[0].message.model_dump()]
    turns += [{"role": "assistant", "content": ""}, {"role": "user", "content": "Why?"}]  # an empty one, too
    job_id, answer = rig.ask(messages=turns)
    assert [turn["content"] for turn in rig.job(job_id).request["messages"]] == [
        "What is a queue?",
        "A line.",
        "Why?",
    ]
    rig.worker.claim(job_id)
    rig.end(job_id)
    answer.result(20)


def test_every_choice_is_shown_with_its_logprobs(rig: Rig) -> None:
    token = TokenLogprob("é", -0.5, (("é", -0.5), ("e", -1.5)))
    choices = (
        Choice("é", FinishReason.STOP, (token,)),
        Choice("e", FinishReason.LENGTH, (token,)),
    )
    completion = answered(
        rig, "é", choices=choices, asked={"n": 2, "logprobs": True, "top_logprobs": 2, "temperature": 1}
    )
    shown = [(choice.index, choice.message.content, choice.finish_reason) for choice in completion.choices]
    assert shown == [(0, "é", "stop"), (1, "e", "length")]
    [logprob] = completion.choices[0].logprobs.content
    assert (logprob.token, logprob.logprob, logprob.bytes) == ("é", -0.5, [0xC3, 0xA9])
    assert [(top.token, top.logprob) for top in logprob.top_logprobs] == [("é", -0.5), ("e", -1.5)]


@pytest.mark.parametrize(
    ("reason", "shown", "ended_by"),
    [
        (FinishReason.LENGTH, "length", None),
        (FinishReason.CONTENT_FILTER, "content_filter", None),
        (FinishReason.REPETITION, "length", "repetition"),
    ],
)
def test_it_is_told_why_a_text_ends_early(
    rig: Rig, reason: FinishReason, shown: str, ended_by: str | None
) -> None:
    [choice] = answered(rig, reason=reason).choices
    assert (choice.finish_reason, (choice.model_extra or {}).get("ended_by")) == (shown, ended_by)


def test_each_tier_has_its_lane_and_the_answer_tells_the_tier_really_used(rig: Rig) -> None:
    long = [{"role": "user", "content": "word " * 5_500}]
    for asked, lane, tier in (
        ({}, "warm", "default"),
        ({"service_tier": "auto"}, "warm", "default"),
        ({"service_tier": "fast"}, "hot", "priority"),
        ({"service_tier": "flex"}, "cold", "flex"),
        ({"service_tier": "priority", "messages": long}, "cold", "flex"),
    ):
        job_id, answer = rig.ask(**asked)
        assert rig.job(job_id).lane == lane, asked
        rig.worker.claim(job_id)
        rig.end(job_id)
        assert answer.result(20).service_tier == tier, asked


# --- streams --------------------------------------------------------------------------------------------


def joined(chunks: list[ChatCompletionChunk], index: int = 0) -> str:
    """All text of a choice."""
    choices = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
    return "".join(choice.delta.content or "" for choice in choices)


def test_a_stream_brings_the_answer_in_chunks(api: Api, processes: Processes, rig: Rig) -> None:
    processes.worker("warm", time_scale=SLOW)
    chunks = list(rig.create(stream=True, stream_options={"include_usage": True}, max_completion_tokens=20))
    first, last, usage = chunks[0], chunks[-2], chunks[-1]
    assert {(chunk.object, chunk.id, chunk.model, chunk.service_tier) for chunk in chunks} == {
        ("chat.completion.chunk", first.id, MODEL, "default")
    }
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    pieces = [chunk for chunk in chunks[1:-2] if chunk.choices[0].delta.content]
    assert len(pieces) > 1
    with api.engine.begin() as connection:
        output = connection.execute(text("SELECT output FROM results")).scalar_one()
    assert joined(chunks) == output != ""
    assert last.choices[0].finish_reason == "length"
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * len(chunks[:-1])
    assert usage.choices == []
    assert usage.usage
    assert usage.usage.completion_tokens == 20


def test_an_async_client_gets_the_same_stream(rig: Rig, processes: Processes) -> None:
    processes.worker("warm")

    async def run() -> list[ChatCompletionChunk]:
        async with AsyncOpenAI(base_url=f"{rig.api.url}/v1", api_key=rig.api.key) as client:
            stream = await client.chat.completions.create(**ASKED, stream=True, max_tokens=5)
            return [chunk async for chunk in stream]

    chunks = asyncio.run(run())
    assert joined(chunks)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert {chunk.usage for chunk in chunks} == {None}


def test_a_stream_ends_with_each_choice_and_its_logprobs(rig: Rig) -> None:
    token = TokenLogprob("A", -0.5, ())
    choices = (Choice("A line.", FinishReason.STOP, (token,)), Choice("B", FinishReason.LENGTH, (token,)))
    job_id, answer = rig.ask(stream=True, n=2, logprobs=True, temperature=1)
    attempt = rig.worker.claim(job_id)
    rig.worker.tell(job_id, f"{attempt}-1", LiveEvent.TEXT, text="A ")
    rig.end(job_id, "A line.", choices=choices)
    chunks = answer.result(20)
    assert (joined(chunks, 0), joined(chunks, 1)) == ("A line.", "B")
    ends = [choice for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert [(choice.index, choice.finish_reason) for choice in ends] == [(0, "stop"), (1, "length")]
    assert [choice.logprobs.content[0].token for choice in ends] == ["A", "A"]


def test_a_stream_whose_attempt_is_lost_after_text_ends_with_an_error(rig: Rig) -> None:
    job_id, answer = rig.ask(stream=True)
    rig.worker.claim(job_id)
    rig.worker.tell(job_id, "1-1", LiveEvent.TEXT, text="A ")
    rig.worker.tell(job_id, "2-1", LiveEvent.RESET, attempt=2)
    rig.worker.tell(job_id, "2-2", LiveEvent.TEXT, text="Another")
    with pytest.raises(openai.APIError) as caught:
        answer.result(20)
    assert (caught.value.code, caught.value.type) == ("attempt_lost", "server_error")
    until(lambda: rig.job(job_id).status == "cancelled", what="the cancel: nobody waits any more")


# --- clients that leave -----------------------------------------------------------------------------------


async def _leave_waiting(rig: Rig, running: Callable[[], Any], **given: Any) -> None:
    async with AsyncOpenAI(base_url=f"{rig.api.url}/v1", api_key=rig.api.key) as client:
        waiting = asyncio.create_task(client.chat.completions.create(**ASKED | given))
        await asyncio.to_thread(until, running)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


def test_a_client_that_leaves_cancels_the_job_and_frees_its_place(rig: Rig, processes: Processes) -> None:
    processes.worker("warm", limit=1, time_scale=SLOW)

    def running() -> bool:
        return processes.count("jobs", "status = 'running'") == 1

    def freed(jobs: int) -> bool:
        return processes.count("latency_records", "outcome = 'cancel'") == jobs

    asyncio.run(_leave_waiting(rig, running, max_tokens=4_000))
    until(lambda: freed(1), what="the end of what nobody waits for")
    with rig.create(stream=True, max_tokens=4_000) as stream:
        assert next(chunk for chunk in stream if chunk.choices[0].delta.content)
    until(lambda: freed(2), what="the end of what nobody reads")
    assert processes.count("jobs", "status = 'cancelled'") == 2
    assert rig.create(max_tokens=2).choices[0].message.content  # in the one place that there is


def test_a_client_with_a_key_may_leave_and_come_back(rig: Rig) -> None:
    asyncio.run(_leave_waiting(rig, lambda: rig.ids(), extra_headers=KEY))
    [job_id] = rig.ids()
    attempt = rig.worker.claim(job_id)  # which a cancelled job does not allow
    rig.end(job_id, "A line.", attempt=attempt)
    for _ in range(2):
        again = rig.create(extra_headers=KEY)
        assert (again.id, again.choices[0].message.content) == (
            f"chatcmpl-{uuid.UUID(job_id).hex}",
            "A line.",
        )
    assert len(rig.ids()) == 1
    error = refused(rig.create, extra_headers=KEY, max_tokens=5)
    assert (error.status_code, error.code) == (409, "idempotency_conflict")
    assert error.response.headers["x-should-retry"] == "false"


# --- what is refused, and what fails ----------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "tools": ({"tools": [{"type": "function"}]}, "unsupported_parameter", "tools"),
    "store": ({"store": True}, "unsupported_parameter", "store"),
    "audio": ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    "effort": ({"reasoning_effort": "high"}, "unsupported_parameter", "reasoning_effort"),
    "unknown": ({"extra_body": {"temprature": 1}}, "unsupported_parameter", "temprature"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "unsupported_parameter",
        "messages[0].content[0].type",
    ),
    "a tool's answer": (
        {"messages": [{"role": "tool", "content": "4", "tool_call_id": "1"}]},
        "unsupported_parameter",
        "messages[0].role",
    ),
    "a name": (
        {"messages": [{"role": "user", "content": "a", "name": "b"}]},
        "unsupported_parameter",
        "messages[0].name",
    ),
    "a tier": ({"service_tier": "scale"}, "unsupported_parameter", "service_tier"),
    "no text of a tier": ({"service_tier": ["flex"]}, "wrong_type", "service_tier"),
    "no text of a role": ({"messages": [{"role": {}, "content": "a"}]}, "invalid_value", "messages[0].role"),
    "no messages": ({"messages": []}, "empty", "messages"),
    "a blank": ({"messages": [{"role": "user", "content": " "}]}, "empty", "messages[0].content"),
    "a temperature": ({"temperature": 3}, "out_of_range", "temperature"),
    "both limits": ({"max_tokens": 5, "max_completion_tokens": 6}, "conflicting_fields", None),
    "options": ({"stream_options": {"include_usage": True}}, "conflicting_fields", "stream_options"),
    "padding": (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "unsupported_parameter",
        "stream_options.include_obfuscation",
    ),
    "a schema": ({"response_format": {"type": "json_schema"}}, "missing_field", "response_format"),
    "a long label": ({"user": "u" * 513}, "wrong_type", "user"),
    "a long prompt": (
        {"messages": [{"role": "user", "content": "word " * 40_000}]},
        "context_length_exceeded",
        "messages",
    ),
}


def test_what_is_not_supported_is_refused_by_name_and_nothing_is_stored(rig: Rig) -> None:
    for name, (given, code, param) in REFUSED.items():
        error = refused(rig.create, **given)
        assert (error.status_code, error.code) == (400, code), (name, error.body)
        assert error.type == "invalid_request_error", name
        assert param is None or error.param == param, (name, error.param)
    assert rig.ids() == set()


@pytest.mark.parametrize(
    ("code", "status", "shown"),
    [("engine_error", 500, "engine_error"), ("prompt_too_long", 400, "context_length_exceeded")],
)
def test_a_job_that_fails_is_an_error_which_the_client_does_not_repeat(
    rig: Rig, code: str, status: int, shown: str
) -> None:
    rig.client = rig.client.with_options(max_retries=2)
    job_id, answer = rig.ask()
    rig.worker.claim(job_id)
    rig.fail(job_id, code)
    with pytest.raises(openai.APIStatusError) as caught:
        answer.result(20)
    assert (caught.value.status_code, caught.value.code, len(rig.ids())) == (status, shown, 1)
    job_id, answer = rig.ask(stream=True)
    rig.worker.claim(job_id)
    rig.fail(job_id, code)
    with pytest.raises(openai.APIError) as in_stream:
        answer.result(20)
    assert in_stream.value.code == shown
