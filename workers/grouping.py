"""Gathers calls made while one is under way into the next one: group commit without a timer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class Grouped(Generic[Item, Answer]):
    """Calls `run` with many items at once; an idle one runs at once, a busy one gathers.

    `run` answers one value per item, in order. Its exception reaches every caller of that group. All
    methods belong to one asyncio loop.
    """

    def __init__(self, run: Callable[[Sequence[Item]], Awaitable[Sequence[Answer]]], limit: int) -> None:
        """At most `limit` items go into one call."""
        self._run, self._limit = run, limit
        self._waiting: deque[tuple[Item, asyncio.Future[Answer]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def add(self, item: Item) -> asyncio.Future[Answer]:
        """Put an item into the next group; the future answers for it."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        if self._runner is None:
            self._runner = asyncio.create_task(self._drain())
        return future

    async def _drain(self) -> None:
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(self._limit, len(self._waiting)))]
            try:
                answers = await self._run([item for item, _ in group])
            except Exception as error:  # handed on to those who asked
                for _, future in group:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        self._runner = None
