"""The fitted profiles, run in virtual time at each measured point."""

import asyncio
import statistics
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest

from jobs.domain.outcomes import Completed
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.domain.tokens import estimate
from trilane.bench import virtual_time
from workers.engines import sim_curves
from workers.engines.sim import SimEngine, SimProfile
from workers.engines.sim_curves import (
    BATCHES,
    CARDS,
    FP16,
    INT8,
    LONG_SLOWDOWN,
    LONG_TOKENS,
    LongWork,
    PrecisionPoint,
    a100,
    short_tokens,
)

TOLERANCE = 0.03
TURN = sim_curves.REQUEST_TOKENS
OVERHEAD = estimate([Message(Role.USER, "")])

each_reading = pytest.mark.parametrize("reading", LongWork)
each_precision = pytest.mark.parametrize("point", [FP16, INT8], ids=["fp16", "int8"])


def closed_loop(profile: SimProfile, sequences: int, tokens: int, rounds: int = 60) -> list[float]:
    """Seconds of each request with so many clients, each with one request after another, in mid-run."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        engine = SimEngine("m", replace(profile, slots=sequences, stream_interval=32), now=loop.time)
        await engine.start()

        async def client(number: int) -> list[float]:
            await asyncio.sleep(number / sequences)  # spread over about one request
            took = [await seconds(engine, tokens, tokens) for _ in range(rounds)]
            return took[2:-2]

        took = await asyncio.gather(*map(client, range(sequences)))
        await engine.stop()
        return [each for clients in took for each in clients]

    return virtual_time.run(main())


async def seconds(engine: SimEngine, prompt_tokens: int, output_tokens: int) -> float:
    """How long one request takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    message = Message(Role.USER, "four" * (prompt_tokens - OVERHEAD))
    request = GenerationRequest("job", (message,), Sampling(max_tokens=output_tokens))
    outcome = [chunk.outcome async for chunk in engine.generate(request)][-1]
    assert isinstance(outcome, Completed)
    assert outcome.usage.prompt_tokens == prompt_tokens
    return loop.time() - began


def rate_with_long_work(reading: LongWork, share: float) -> float:
    """Requests a second over all cards, with every `1 / share`th one of `LONG_TOKENS`."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        engine = SimEngine("m", replace(a100(FP16, reading), jitter=0.0, stream_interval=32), now=loop.time)
        await engine.start()
        ended = 0

        async def client(number: int) -> None:
            nonlocal ended
            await asyncio.sleep(number / 8)
            for turn in range(50):
                # Spread evenly: the sum of shares passes a whole number.
                nth = number + 8 * turn
                is_long = int((nth + 1) * share) > int(nth * share)
                await seconds(engine, LONG_TOKENS if is_long else TURN, TURN)
                ended += 1

        clients = [asyncio.create_task(client(number)) for number in range(8)]
        await asyncio.wait(clients, return_when=asyncio.FIRST_COMPLETED)
        rate = CARDS * ended / loop.time()
        for each in clients:
            each.cancel()
        await engine.stop()
        return rate

    return virtual_time.run(main())


def per_s(took: list[float], sequences: int) -> float:
    """Requests a second over all cards."""
    return CARDS * sequences / statistics.mean(took)


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100, method="inclusive")[98]


@cache
def at_batch(reading: LongWork, sequences: int) -> list[float]:
    return closed_loop(a100(FP16, reading), sequences, TURN)


@each_reading
@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: batch.sequences)
def test_full_batches_reach_the_measured_rate(reading: LongWork, batch: sim_curves.Batch) -> None:
    took = at_batch(reading, batch.sequences)
    assert per_s(took, batch.sequences) == pytest.approx(batch.per_s, rel=TOLERANCE)


@each_reading
def test_p99_is_under_the_measured_one_at_4_and_meets_it_at_8(reading: LongWork) -> None:
    assert p99(at_batch(reading, 4)) < BATCHES[0].p99_s
    assert p99(at_batch(reading, 8)) == pytest.approx(BATCHES[1].p99_s, rel=TOLERANCE)


@each_reading
def test_p99_at_16_is_missed_as_the_profiles_say(reading: LongWork) -> None:
    assert BATCHES[2].p99_s == 3.8
    assert p99(at_batch(reading, 16)) == pytest.approx(2.2, rel=TOLERANCE)


def test_one_long_request_makes_the_requests_beside_it_take_40_percent_longer() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        engine = SimEngine("m", replace(a100(FP16, LongWork.REQUEST), jitter=0.0), now=loop.time)
        await engine.start()
        work = [seconds(engine, prompt, TURN) for prompt in (*[TURN] * 7, LONG_TOKENS)]
        took = await asyncio.gather(*work)
        await engine.stop()
        return max(took)

    assert virtual_time.run(main()) / BATCHES[1].mean_s == pytest.approx(1 + LONG_SLOWDOWN, rel=TOLERANCE)


def test_one_long_request_makes_a_step_take_40_percent_longer() -> None:
    async def step_s(longest: int) -> float:
        loop = asyncio.get_running_loop()
        engine = SimEngine("m", replace(a100(FP16, LongWork.STEP), jitter=0.0), now=loop.time)
        await engine.start()
        came: list[float] = []

        async def watched() -> None:
            message = Message(Role.USER, "four" * (TURN - OVERHEAD))
            async for _ in engine.generate(GenerationRequest("job", (message,), Sampling(max_tokens=TURN))):
                came.append(loop.time())

        others = [seconds(engine, prompt, 2 * TURN) for prompt in (*[TURN] * 6, longest)]
        await asyncio.gather(watched(), *others)
        await engine.stop()
        # The second half: nobody prefills any more, nobody has ended.
        return (came[-1] - came[TURN // 2]) / (TURN - 1 - TURN // 2)

    ratio = virtual_time.run(step_s(LONG_TOKENS)) / virtual_time.run(step_s(TURN))
    assert ratio == pytest.approx(1 + LONG_SLOWDOWN, rel=TOLERANCE)


@each_reading
def test_there_is_no_knee_as_the_profiles_say(reading: LongWork) -> None:
    rates = [rate_with_long_work(reading, share) for share in (0.0, 0.1, 0.2, 0.3, 0.4)]
    losses = [before - after for before, after in pairwise(rates)]
    assert losses == sorted(losses, reverse=True)
    assert min(losses) > 0


@each_reading
@each_precision
def test_a_precision_has_its_p50_alone_and_its_peak_in_full_batches(
    reading: LongWork, point: PrecisionPoint
) -> None:
    profile, tokens = a100(point, reading), round(short_tokens(reading))
    alone = statistics.median(closed_loop(profile, 1, tokens))
    assert alone == pytest.approx(point.p50_s, rel=TOLERANCE)
    full = closed_loop(profile, point.sequences, tokens)
    assert per_s(full, point.sequences) == pytest.approx(point.peak_per_s, rel=TOLERANCE)


@each_precision
def test_steps_jitter_as_measured(point: PrecisionPoint) -> None:
    profile, tokens = a100(point), round(short_tokens(LongWork.STEP))
    assert point.jitter == profile.jitter
    alone = closed_loop(profile, 1, tokens)
    # What is left of it over a request's steps.
    assert statistics.stdev(alone) / statistics.mean(alone) == pytest.approx(
        point.jitter / tokens**0.5, rel=0.35
    )
