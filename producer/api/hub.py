"""Live events for any number of open streams, on one Redis subscription and one poll of the database.

No stream holds a thread or a connection of its own. Redis only hints: what it loses, the streams read
again from the job's backlog, and the end of a job is found by the poll at the latest.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import Any

import structlog
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from sqlalchemy.exc import SQLAlchemyError

from jobs import live
from jobs.live import Event

POLL_S = 2.0
_PAUSE_S = 0.5  # before Redis is tried again
_CONNECTIONS = 16
_EVENTS_KEPT = 1_024  # for a stream whose client reads slowly; then it reads the backlog instead
_OWN_CHANNEL = live.channel("api")  # nobody publishes there: it keeps the subscription open without streams

log = structlog.get_logger()


class Signal(Enum):
    """What a stream is told besides events."""

    LOOK = "look"  # events may have been missed: read the backlog
    CLOSE = "close"  # the API stops


class Listener:
    """One open stream's share of the events."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[Event | Signal] = asyncio.Queue()

    async def get(self, within_s: float) -> Event | Signal | None:
        """The next event or signal; None after `within_s` seconds of silence."""
        try:
            async with asyncio.timeout(within_s):
                return await self._items.get()
        except TimeoutError:
            return None

    def put(self, item: Event | Signal) -> None:
        """Tell the stream. One that does not keep up loses events, and is told to look for them."""
        if self._items.qsize() >= _EVENTS_KEPT:
            while not self._items.empty():
                self._items.get_nowait()
            self._items.put_nowait(Signal.LOOK)
        self._items.put_nowait(item)


class Hub:
    """Spreads the jobs' events to the streams that are open; `ended` tells which of many jobs have ended."""

    def __init__(self, redis_url: str, ended: Callable[[list[uuid.UUID]], Awaitable[set[uuid.UUID]]]) -> None:
        """Connect to nothing yet."""
        self._ended = ended
        pool = BlockingConnectionPool.from_url(
            redis_url,
            max_connections=_CONNECTIONS,
            timeout=10.0,
            socket_connect_timeout=1.0,
            socket_timeout=5.0,  # a subscription waits without limit all the same
            socket_keepalive=True,
            retry=Retry(NoBackoff(), 0),
        )
        self._redis: Any = Redis.from_pool(pool)
        self._listeners: dict[str, set[Listener]] = {}
        self._subscribed: set[str] = set()
        self._changed = asyncio.Event()
        self._closed = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Carry events while the context is open."""
        rounds = ((self._listen, _PAUSE_S), (self._poll, POLL_S))
        tasks = [asyncio.create_task(_repeat(one, pause_s)) for one, pause_s in rounds]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._redis.aclose()

    @asynccontextmanager
    async def listening(self, job_id: str) -> AsyncIterator[Listener]:
        """A listener to one job. It is told to look into the backlog once no event can be missed any more."""
        listener = Listener()
        self._listeners.setdefault(job_id, set()).add(listener)
        if self._closed:
            listener.put(Signal.CLOSE)
        if job_id in self._subscribed:
            listener.put(Signal.LOOK)
        self._changed.set()
        try:
            yield listener
        finally:
            self._listeners[job_id].discard(listener)
            if not self._listeners[job_id]:
                del self._listeners[job_id]
                self._changed.set()

    async def backlog(self, job_id: str, after: str | None, listener: Listener) -> list[Event]:
        """The events that are kept, from behind the id `after`; where they cannot be read now, the listener
        is told to look again."""
        try:
            entries = await self._redis.xrange(live.stream_key(job_id), f"({after}" if after else "-")
        except (RedisError, OSError):
            if job_id in self._subscribed:  # Else a new subscription tells it.
                asyncio.get_running_loop().call_later(_PAUSE_S, listener.put, Signal.LOOK)
            return []
        return [live.from_fields(entry.decode(), _decoded(fields)) for entry, fields in entries]

    async def ping(self) -> bool:
        """Whether Redis answers."""
        try:
            return bool(await self._redis.ping())
        except (RedisError, OSError):
            return False

    def close(self) -> None:
        """End all streams, now and from now on; their clients resume elsewhere or later."""
        self._closed = True
        for listeners in self._listeners.values():
            for listener in listeners:
                listener.put(Signal.CLOSE)

    async def _listen(self) -> None:
        """Keep one subscription to the channels of the jobs that are listened to, until it breaks."""
        try:
            async with self._redis.pubsub() as pubsub:
                await pubsub.subscribe(_OWN_CHANNEL)
                self._changed.set()
                await self._carry(pubsub)
        finally:
            self._subscribed.clear()

    async def _carry(self, pubsub: Any) -> None:
        following = asyncio.create_task(self._follow(pubsub))
        try:
            async for message in pubsub.listen():
                job_id = live.job_of_channel(message["channel"].decode())
                if message["type"] == "message":
                    self._tell(job_id, live.from_message(message["data"]))
                elif message["type"] == "subscribe":
                    self._subscribed.add(job_id)
                    self._tell(job_id, Signal.LOOK)
        finally:
            while not following.done():  # redis-py swallows a cancellation that comes while it sends
                following.cancel()
                await asyncio.wait([following], timeout=_PAUSE_S)

    async def _follow(self, pubsub: Any) -> None:
        """Subscribe to what is listened to and not subscribed, and the other way round, in one go each."""
        own, asked = live.job_of_channel(_OWN_CHANNEL), set[str]()
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = set(self._listeners)
            with suppress(RedisError, OSError):  # The reader sees the same failure and begins anew.
                if new := wanted - asked:
                    await pubsub.subscribe(*map(live.channel, new))
                if old := asked - wanted - {own}:
                    self._subscribed -= old
                    await pubsub.unsubscribe(*map(live.channel, old))
            asked = wanted

    async def _poll(self) -> None:
        """Look in the database for jobs that ended without a hint."""
        ids = [uuid.UUID(job_id) for job_id in self._listeners]
        for job_id in await self._ended(ids) if ids else ():
            self._tell(str(job_id), live.ENDED)

    def _tell(self, job_id: str, item: Event | Signal) -> None:
        for listener in self._listeners.get(job_id, ()):
            listener.put(item)


async def _repeat(one_round: Callable[[], Awaitable[None]], pause_s: float) -> None:
    while True:
        try:
            await one_round()
        except (RedisError, OSError, SQLAlchemyError) as error:
            log.debug("live.away", error=type(error).__name__)
        except Exception as error:  # The edge of the loop: no stream may stay without its events for a bug.
            log.error("live.round_crashed", error=type(error).__name__)
        await asyncio.sleep(pause_s)


def _decoded(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}
