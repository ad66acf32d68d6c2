"""What only real vLLM shows: cancels, prefixes, priorities, and what it says of itself."""

import asyncio

from tests.answers import Answer, collect
from tests.vllm.driver import Driver, ask, until

# CPU blocks hold 128 tokens, and whole blocks are shared.
PREFIX = "The lighthouse keeper counts the ships. " * 25


def test_it_says_what_it_runs(tiny: Driver) -> None:
    engine = tiny.engine
    assert (engine.precision, engine.device, engine.dead) == ("fp32", "cpu", False)


def test_closing_frees_the_sequence_within_a_second(tiny: Driver) -> None:
    async def close() -> float:
        stream = tiny.engine.generate(ask(max_tokens=400))
        await anext(stream)
        await until(lambda: tiny.engine.stats().running == 1)
        await stream.aclose()
        return await until(lambda: tiny.engine.stats().running == 0)

    assert tiny.run(close()) < 1.0
    assert tiny.engine.stats().kv_usage == 0


def test_cancelling_frees_the_sequence_within_a_second(tiny: Driver) -> None:
    async def cancel() -> float:
        work = asyncio.create_task(collect(tiny.engine, ask(max_tokens=400)))
        await until(lambda: tiny.engine.stats().running == 1)
        work.cancel()
        await asyncio.wait([work])
        return await until(lambda: tiny.engine.stats().running == 0)

    assert tiny.run(cancel()) < 1.0


def test_a_prefix_that_ran_is_not_computed_again(tiny: Driver) -> None:
    tiny.engine._recorder.forget_prefixes()
    first = tiny.answer(ask(PREFIX + "How many?", max_tokens=1)).completed.usage
    cold = tiny.engine.stats().prefix_hit_rate
    again = tiny.answer(ask(PREFIX + "Which colours?", max_tokens=1)).completed.usage
    warm = tiny.engine.stats().prefix_hit_rate
    assert first.cached_tokens == 0 and cold == 0
    assert again.cached_tokens >= 128
    assert warm is not None and warm > 0.2


def test_an_urgent_request_passes_those_that_wait(tiny: Driver) -> None:
    ended: list[str] = []

    async def named(name: str, priority: int, max_tokens: int) -> Answer:
        answer = await collect(tiny.engine, ask(name, priority=priority, max_tokens=max_tokens))
        ended.append(name)
        return answer

    async def crowd() -> list[Answer]:
        busy = [asyncio.create_task(named(f"busy {i}", 5, 60)) for i in range(2)]
        await until(lambda: tiny.engine.stats().running == 2)
        waiting = [asyncio.create_task(named(f"waiting {i}", 9, 8)) for i in range(3)]
        await until(lambda: tiny.engine.stats().waiting == 3)
        urgent = asyncio.create_task(named("urgent", 0, 8))
        return await asyncio.gather(urgent, *busy, *waiting)

    urgent, *others = tiny.run(crowd())
    assert next(name for name in ended if not name.startswith("busy")) == "urgent"
    queued_ms = [answer.completed.timings.engine_queue_ms or 0.0 for answer in others[2:]]
    assert (urgent.completed.timings.engine_queue_ms or 0.0) < min(queued_ms)


def test_times_are_the_engines_own(tiny: Driver) -> None:
    timings = tiny.answer(ask(PREFIX)).completed.timings
    assert timings.engine_queue_ms is not None and timings.engine_queue_ms >= 0
    assert timings.prefill_ms and timings.prefill_ms > 0
    assert timings.decode_ms and timings.decode_ms > 0
    assert timings.preemptions == 0
