"""A simulated card that two engines divide."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from trilane.bench import virtual_time
from workers.engines.sim_card import SharedCard

Part = Callable[[float], Awaitable[None]]


def ended_at(*work: tuple[float, float, float]) -> list[float]:
    """When each piece of (share, start in s, seconds) of work is done."""

    async def main() -> list[float]:
        card = SharedCard()

        async def one(share: float, start_s: float, seconds: float) -> float:
            await asyncio.sleep(start_s)
            await card.part(share)(seconds)
            return asyncio.get_running_loop().time()

        return await asyncio.gather(*(one(*each) for each in work))

    return virtual_time.run(main())


def test_one_alone_has_the_whole_card_whatever_its_share() -> None:
    assert ended_at((0.25, 0, 2)) == [pytest.approx(2)]


def test_two_divide_it_by_their_shares_until_one_is_done() -> None:
    # The first gets 3 of 4 parts for 4 s; the other has then done 1 s of its 2.
    assert ended_at((0.75, 0, 3), (0.25, 0, 2)) == [pytest.approx(4), pytest.approx(5)]


def test_one_that_comes_later_slows_what_is_left() -> None:
    assert ended_at((0.5, 0, 2), (0.5, 1, 1)) == [pytest.approx(3), pytest.approx(3)]


def test_work_that_is_closed_gives_its_part_back() -> None:
    async def main() -> float:
        card = SharedCard()
        closed = asyncio.create_task(_compute(card.part(0.5), 10))
        other = asyncio.create_task(_compute(card.part(0.5), 2))
        await asyncio.sleep(1)
        closed.cancel()
        await other
        return asyncio.get_running_loop().time()

    assert virtual_time.run(main()) == pytest.approx(2.5)


async def _compute(part: Part, seconds: float) -> None:
    await part(seconds)
