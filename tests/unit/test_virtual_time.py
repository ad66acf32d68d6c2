"""The loop in virtual time."""

import asyncio
import time

import pytest

from trilane.bench import virtual_time


def test_hours_pass_at_once_and_in_order() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        woken: list[tuple[str, float]] = []

        async def wake(name: str, after_s: float) -> None:
            await asyncio.sleep(after_s)
            woken.append((name, loop.time()))

        await asyncio.gather(wake("late", 7_200), wake("soon", 0.25), wake("then", 3_600))
        return woken

    began = time.monotonic()
    assert virtual_time.run(main()) == [("soon", 0.25), ("then", 3_600), ("late", 7_200)]
    assert time.monotonic() - began < 60


def test_a_wait_that_nobody_ends_is_an_error() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(virtual_time.Stuck):
        virtual_time.run(main())
