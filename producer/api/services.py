"""What the routes share: the database and its threads, the announcer, the submitter, the live events."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, Concatenate, ParamSpec, TypeVar

from fastapi import Depends, Request
from sqlalchemy import Connection
from sqlalchemy.exc import TimeoutError as DatabaseTimeoutError

from jobs.broker import Announcer
from jobs.settings import Settings
from jobs.store import reads, tenants
from jobs.store.engine import open_engine
from producer.api import snapshot
from producer.api.hub import Hub
from producer.api.keys import Keys
from producer.api.limits import Limits
from producer.api.metrics import Metrics
from producer.api.snapshot import Snapshots
from producer.submitter import Submitter

ANSWER_WITHIN_S = 10.0
LONG_CALLS = 2

P = ParamSpec("P")
T = TypeVar("T")


class Services:
    """One of each for an app. Nothing is connected to before the first use."""

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError` or `ValueError` where a setting cannot be right."""
        self.settings = settings
        self.engine = open_engine(settings.database_url, pool_size=settings.api.db_threads)
        self.announcer = Announcer(settings)
        self.submitter = Submitter(settings, lambda: self.engine, self.announcer)
        self.metrics = Metrics()
        self.keys = Keys(lambda key: self.transact(tenants.of_key, key))
        self.snapshots = Snapshots(lambda: self.transact(snapshot.take, list(settings.lanes)))
        self.hub = Hub(settings.redis_url, self._ended)
        self.limits = Limits(settings)
        # As many threads as connections: what waits for the database waits here, on no thread.
        self._threads = ThreadPoolExecutor(settings.api.db_threads, thread_name_prefix="api-db")
        self._long = asyncio.Semaphore(LONG_CALLS)
        self._later = set[asyncio.Task[None]]()

    async def run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`call(...)`, which asks the database, in one of the bounded threads.

        A database that hangs is as good as away: then this raises what it raises while it is away.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(ANSWER_WITHIN_S):
                return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        except TimeoutError:
            raise DatabaseTimeoutError(f"no answer within {ANSWER_WITHIN_S} s") from None

    async def run_long(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for what may take seconds: without its limit of time, but only `LONG_CALLS` at once."""
        async with self._long:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))

    async def transact(
        self, call: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """`call(connection, ...)` in one transaction, in one of the bounded threads."""

        def transaction() -> T:
            with self.engine.begin() as connection:
                return call(connection, *args, **kwargs)

        return await self.run(transaction)

    def later(
        self, pause_s: float, call: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Await `call(...)` after a pause, beside the requests; it is dropped when the API stops."""

        async def wait() -> None:
            await asyncio.sleep(pause_s)
            await call(*args, **kwargs)

        task = asyncio.create_task(wait())
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def close(self) -> None:
        """Let running calls end, then close the connections."""
        for task in self._later:
            task.cancel()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        self.engine.dispose()
        self.announcer.close()
        await self.limits.close()

    async def _ended(self, ids: list[uuid.UUID]) -> set[uuid.UUID]:
        return await self.transact(reads.ended, ids)


async def _of(request: Request) -> Any:
    return request.app.state.services


Shared = Annotated[Services, Depends(_of)]
