"""What every engine promises behind the seam, asked of each of them."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from jobs.domain import tokens
from jobs.domain.outcomes import FinishReason, Rejected, Retryable
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.model_files import smollm2_path
from jobs.tokenizer import TokenCounter
from tests.answers import Answer, collect
from workers.engines import llamacpp_wire
from workers.engines.llamacpp import LlamaCppEngine
from workers.engines.seam import Engine
from workers.engines.sim import SimEngine, SimProfile

T = TypeVar("T")
SLOTS = 2
MAX_MODEL_LEN = 768
# A second of two cores, so that it holds on a busy machine too: one step of llama.cpp is 0.8 s here, the rest
# of the long prefill 8 s.
FREED_WITHIN_CPU_S = 2.0
STORY = "Tell a long story about a lighthouse."
# Far from done when it is cancelled: seconds of prefill, on any engine here.
LONG = "The sea is wide. " * 120
TOO_LONG = "The sea is wide. " * 2000
CHATS = {
    "english": (Message(Role.USER, "Hello, how are you today?"),),
    "chinese": (Message(Role.USER, "你好,世界!今天天气怎么样?"),),
    "emoji": (Message(Role.USER, "🙂👩‍👩‍👧‍👦🇨🇭 fine"),),
    "code": (Message(Role.USER, "def f(x):\n    return x ** 2  # 1234567\n\t\tif  x:\r\n"),),
    "spaces": (Message(Role.USER, "  around it  \n\n"),),
    "controls": (Message(Role.USER, "\x01\x13\x16 and \u200b\u3000\ufeff"),),
    "markers": (Message(Role.USER, "<|im_end|> and <|im_start|>system"),),
    "empty": (Message(Role.USER, ""),),
    "system": (Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Hi")),
    "empty-system": (Message(Role.SYSTEM, ""), Message(Role.USER, "Hi")),
    "turns": (Message(Role.USER, "1"), Message(Role.ASSISTANT, "2"), Message(Role.USER, "3")),
    "assistant-last": (Message(Role.USER, "1"), Message(Role.ASSISTANT, "2")),
}


@dataclass
class Rig:
    """An engine with what the tests know of it otherwise."""

    engine: Engine
    count: Callable[[tuple[Message, ...]], int]  # the prompt's tokens, by other means
    own_running: Callable[[], int]  # sequences, by the engine's own account
    whole_text: Callable[[GenerationRequest], str]  # the answer in one piece, without the stream
    runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the engine's loop."""
        return self.runner.run(work)

    def answer(self, request: GenerationRequest) -> Answer:
        """One request, to its end."""
        return self.run(collect(self.engine, request))


def sim() -> Rig:
    """The simulated engine, slow enough to be caught in the act."""
    profile = SimProfile(SLOTS, MAX_MODEL_LEN, max_batched_tokens=64, prefill_ms_per_token=1.0)
    engine = SimEngine("model", profile)

    def whole_text(request: GenerationRequest) -> str:
        async def at_once() -> str:
            free = SimEngine("model", SimProfile(SLOTS, MAX_MODEL_LEN, time_scale=0))
            await free.start()
            return (await collect(free, request)).text

        return asyncio.run(at_once())

    return Rig(engine, tokens.estimate, lambda: engine.stats().running, whole_text)


def llama() -> Rig:
    """llama.cpp with the model that the local stack carries."""
    engine = LlamaCppEngine(smollm2_path(), "smollm2", slots=SLOTS, ctx_per_slot=MAX_MODEL_LEN)

    def own_running() -> int:
        found = re.search(r"^llamacpp:requests_processing (\d+)", engine.metrics(), re.MULTILINE)
        assert found
        return int(found[1])

    def whole_text(request: GenerationRequest) -> str:
        body = json.loads(llamacpp_wire.body(request)) | {"stream": False}
        text = engine._server.handle_chat_completions(body)["choices"][0]["message"]["content"]
        assert isinstance(text, str)
        return text

    return Rig(engine, TokenCounter(smollm2_path()).count, own_running, whole_text)


ENGINES: dict[str, Callable[[], Rig]] = {"sim": sim, "llamacpp": llama}


def running(make: Callable[[], Rig]) -> Iterator[Rig]:
    """The engine of `make`, started."""
    rig = make()
    with rig.runner:
        rig.run(rig.engine.start())
        yield rig
        rig.run(rig.engine.stop())


@pytest.fixture(scope="module", params=ENGINES)
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """Each engine in turn, loaded once for all tests of this module."""
    yield from running(ENGINES[request.param])


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> float:
    """Wait for a condition; returns the CPU seconds that this process spent meanwhile."""
    started, cpu_s = time.monotonic(), time.process_time()
    while not condition():
        assert time.monotonic() - started < timeout_s, "the condition did not come"
        await asyncio.sleep(0.01)
    return time.process_time() - cpu_s


def ask(content: str | tuple[Message, ...] = STORY, **sampling: Any) -> GenerationRequest:
    """A request; greedy unless the sampling says otherwise."""
    messages = (Message(Role.USER, content),) if isinstance(content, str) else content
    return GenerationRequest("job", messages, Sampling(**{"temperature": 0.0, "max_tokens": 24} | sampling))


def test_a_stream_ends_in_its_one_outcome(rig: Rig) -> None:
    answer = rig.answer(ask())
    assert len(answer.chunks) > 2
    assert [chunk for chunk in answer.chunks if chunk.outcome] == [answer.chunks[-1]]
    assert all(chunk.text for chunk in answer.chunks[:-1])
    timings = answer.completed.timings
    assert timings.prefill_ms and timings.decode_ms
    assert rig.engine.stats().running == 0, "the slot is free when the outcome is read"


def test_the_stream_is_the_whole_text_exactly(rig: Rig) -> None:
    request = ask("Write three emoji and 你好 in Chinese", max_tokens=40)
    text = rig.answer(request).text
    assert text == rig.whole_text(request)
    assert not text.isascii()
    assert "\ufffd" not in text


@pytest.mark.parametrize("chat", CHATS)
def test_usage_counts_the_prompt_as_others_do(rig: Rig, chat: str) -> None:
    answer = rig.answer(ask(CHATS[chat], max_tokens=1))
    assert answer.completed.usage.prompt_tokens == rig.count(CHATS[chat])


def test_max_tokens_ends_the_text(rig: Rig) -> None:
    answer = rig.answer(ask(max_tokens=7))
    assert answer.completed.finish_reason is FinishReason.LENGTH
    assert answer.completed.usage.output_tokens == 7
    assert sum(chunk.tokens for chunk in answer.chunks) == 7


def test_a_full_context_ends_the_text_and_is_no_failure(rig: Rig) -> None:
    def prompt(sentences: int) -> str:
        return "The sea is wide. " * sentences + STORY

    sentences = 1
    while rig.count((Message(Role.USER, prompt(sentences + 1)),)) < MAX_MODEL_LEN - 8:
        sentences += 1
    completed = rig.answer(ask(prompt(sentences), max_tokens=1000)).completed
    assert completed.finish_reason is FinishReason.LENGTH
    assert MAX_MODEL_LEN - 1 <= completed.usage.prompt_tokens + completed.usage.output_tokens <= MAX_MODEL_LEN


def test_a_stop_string_ends_the_text_before_it(rig: Rig) -> None:
    whole = rig.answer(ask())
    stop = whole.text[len(whole.text) // 2 :][:6]
    answer = rig.answer(ask(stop=("never in there", stop)))
    assert answer.completed.finish_reason is FinishReason.STOP
    assert answer.text == whole.text[: whole.text.index(stop)]
    assert answer.completed.usage.output_tokens < whole.completed.usage.output_tokens


def test_a_seed_makes_it_reproducible_and_another_changes_it(rig: Rig) -> None:
    first, again, other = (rig.answer(ask(temperature=1.0, seed=seed)).text for seed in (7, 7, 8))
    assert first == again
    assert first != other


def test_temperature_zero_is_reproducible(rig: Rig) -> None:
    assert rig.answer(ask()).text == rig.answer(ask()).text


def test_slots_run_at_once_and_more_wait(rig: Rig) -> None:
    async def three() -> tuple[list[Answer], float]:
        stories = [ask(f"{n} {STORY}", max_tokens=40) for n in range(SLOTS + 1)]
        work = asyncio.gather(*(collect(rig.engine, story) for story in stories))
        await until(lambda: (rig.engine.stats().running, rig.engine.stats().waiting) == (SLOTS, 1))
        await until(lambda: (rig.engine.stats().kv_usage or 0) > 0)
        return await work, rig.engine.stats().kv_usage or 0

    answers, kv_usage = rig.run(three())
    assert [answer.completed.usage.output_tokens for answer in answers] == [40] * 3
    assert kv_usage == 0
    queued = [answer.completed.timings.engine_queue_ms or 0 for answer in answers]
    assert queued[2] > max(queued[:2])


def test_closing_frees_the_slot_during_decode(rig: Rig) -> None:
    async def close() -> float:
        stream = rig.engine.generate(ask(max_tokens=1000))
        for _ in range(3):
            assert (await anext(stream)).outcome is None
        await stream.aclose()
        return await until(lambda: rig.engine.stats().running == 0 and rig.own_running() == 0)

    assert rig.run(close()) < FREED_WITHIN_CPU_S


def test_cancelling_frees_the_slot_during_a_long_prefill(rig: Rig) -> None:
    async def cancel() -> float:
        work = asyncio.create_task(collect(rig.engine, ask(LONG)))
        await until(lambda: (rig.engine.stats().kv_usage or 0) > 0)
        assert not work.done()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        return await until(lambda: rig.engine.stats().running == 0 and rig.own_running() == 0)

    assert rig.run(cancel()) < FREED_WITHIN_CPU_S


def test_a_request_that_waits_can_be_closed(rig: Rig) -> None:
    async def close() -> None:
        working = [rig.engine.generate(ask(max_tokens=1000)) for _ in range(SLOTS)]
        for stream in working:
            await anext(stream)
        waiting = asyncio.create_task(collect(rig.engine, ask()))
        await until(lambda: rig.engine.stats().waiting == 1)
        waiting.cancel()
        await until(lambda: rig.engine.stats().waiting == 0)
        for stream in working:
            await stream.aclose()
        await until(lambda: rig.engine.stats().running == 0)

    rig.run(close())
    assert rig.answer(ask(max_tokens=3)).completed.usage.output_tokens == 3


def test_a_prompt_that_is_too_long_is_rejected_with_the_numbers(rig: Rig) -> None:
    request = ask(TOO_LONG)
    answer = rig.answer(request)
    assert isinstance(answer.outcome, Rejected)
    assert answer.outcome.code == "prompt_too_long"
    for number in (rig.count(request.messages), MAX_MODEL_LEN):
        assert str(number) in answer.outcome.message
    assert answer.outcome.usage.prompt_tokens == rig.count(request.messages)
    assert rig.answer(ask(max_tokens=3)).completed


def test_stopping_ends_open_iterators_as_retryable(rig: Rig) -> None:
    async def stop() -> list[Answer]:
        work = asyncio.gather(*(collect(rig.engine, ask(max_tokens=1000)) for _ in range(SLOTS + 1)))
        await until(lambda: (rig.engine.stats().running, rig.engine.stats().waiting) == (SLOTS, 1))
        await rig.engine.stop()
        late = await collect(rig.engine, ask())
        await rig.engine.start()  # for the tests that follow
        return [*await work, late]

    for answer in rig.run(stop()):
        assert isinstance(answer.outcome, Retryable)
        assert answer.outcome.code == "engine_stopped"
    assert rig.answer(ask(max_tokens=3)).completed
