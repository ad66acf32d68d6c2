"""Publishes running jobs' text and status to Redis, and listens there for cancels; all of it only hints."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from jobs import live
from jobs.live import Event, LiveEvent

SNAPSHOT_EVERY = 256  # events, so that the stream always begins with a whole text
FLUSH_EVERY_S = 0.03
BEGIN_AFTER_S = 0.1  # a job that ends sooner is only told of as ended: the most a short job costs in Redis
_PAUSE_S = 1.0

log = structlog.get_logger()


class LiveStream:
    """The events of one attempt. Text is gathered until the next flush."""

    def __init__(self, publisher: "Publisher", job_id: str, attempt: int) -> None:
        """Begin with the status `running`, and a reset where an earlier attempt may have sent text."""
        self.job_id = job_id
        self._publisher, self._attempt = publisher, attempt
        self._sequence = 0
        self._text: list[str] = []
        self._unsent = ""
        self._waiting: list[Event] = []
        self.there = False  # whether the stream is known to exist
        self._begun = self._over = False
        if attempt > 1:
            self._put(LiveEvent.RESET, {"attempt": attempt})
        self._put_status("running")

    def begin(self) -> None:
        """Send the status now, unless it went with the first text or the answer is there."""
        if not (self._begun or self._over):
            self._publisher.touch(self)

    def text(self, piece: str, *, last: bool = False) -> None:
        """Add a piece of the answer; the last one waits for the end, which follows within milliseconds."""
        self._over = last
        if piece:
            self._text.append(piece)
            self._unsent += piece
            if not last:
                self._publisher.touch(self)

    def status(self, status: str) -> None:
        """Tell of a status that the job has now."""
        self._put_status(status)
        self._publisher.touch(self)

    def ended(self) -> None:
        """Tell that the job has ended; where nothing was sent yet, nothing else is."""
        self._over = True
        if not self._begun:
            self._waiting.clear()
            self._unsent = ""
        self._gather()
        self._waiting.append(live.ENDED)
        self._publisher.touch(self)

    def take(self) -> list[Event]:
        """The events to send now."""
        self._gather()
        events, self._waiting = self._waiting, []
        self._begun = True
        return events

    def lost(self) -> None:
        """What was sent may be gone: begin anew with a snapshot, unless the end comes next."""
        self.there = False
        if self._text and not self._over:
            self._put(LiveEvent.SNAPSHOT, {"text": "".join(self._text)})
            self._publisher.touch(self)

    def _gather(self) -> None:
        if not self._unsent:
            return
        if self._sequence and self._sequence % SNAPSHOT_EVERY == 0:
            self._put(LiveEvent.SNAPSHOT, {"text": "".join(self._text)})
        else:
            self._put(LiveEvent.TEXT, {"text": self._unsent})
        self._unsent = ""

    def _put_status(self, status: str) -> None:
        self._put(LiveEvent.STATUS, {"status": status, "attempt": self._attempt})

    def _put(self, event: LiveEvent, data: dict[str, Any]) -> None:
        self._sequence += 1
        self._waiting.append(Event(f"{self._attempt}-{self._sequence}", event, data))


class Publisher:
    """Sends what changed every few milliseconds in one pipeline; drops it while Redis is away."""

    def __init__(self, redis_url: str) -> None:
        """Connect to nothing yet."""
        self._redis: Any = Redis.from_url(redis_url, socket_timeout=2.0, socket_connect_timeout=1.0)
        self._dirty: dict[LiveStream, None] = {}
        self._changed = asyncio.Event()

    def open(self, job_id: str, attempt: int) -> LiveStream:
        """The stream of a new attempt; its status is sent with the first text, or after a moment."""
        stream = LiveStream(self, job_id, attempt)
        asyncio.get_running_loop().call_later(BEGIN_AFTER_S, stream.begin)
        return stream

    def touch(self, stream: LiveStream) -> None:
        """Send this stream's events with the next flush."""
        self._dirty[stream] = None
        self._changed.set()

    async def run(self) -> None:
        """Flush for ever; the first change after a pause is sent at once."""
        while True:
            await self._changed.wait()
            await self.flush()
            await asyncio.sleep(FLUSH_EVERY_S)

    async def flush(self) -> None:
        """Send all that waits."""
        self._changed.clear()
        streams, self._dirty = list(self._dirty), {}
        commands: list[LiveStream | None] = []
        pipe = self._redis.pipeline(transaction=False)
        for stream in streams:
            for event in stream.take():
                commands += _add(pipe, stream, event)
        try:
            answers = await pipe.execute(raise_on_error=False)
        except (RedisError, OSError) as error:
            log.debug("live.redis_away", error=type(error).__name__)
            for stream in streams:
                stream.lost()
            await asyncio.sleep(_PAUSE_S)
            return
        vanished = {
            stream: None
            for stream, answer in zip(commands, answers, strict=True)
            if stream is not None and answer is None
        }
        for stream in vanished:
            stream.lost()

    async def close(self) -> None:
        """Send what waits, and close the connections."""
        await self.flush()
        with suppress(RedisError, OSError):
            await self._redis.aclose()


def _add(pipe: Any, stream: LiveStream, event: Event) -> list[LiveStream | None]:
    """Put one event on the pipe; returns, per command, the stream whose absence its answer None tells."""
    channel, message = live.channel(stream.job_id), live.to_message(event)
    if event.id is None:
        pipe.publish(channel, message)
        return [None]
    # The entry comes before the message, so that who joins in between finds it in one or the other.
    key = live.stream_key(stream.job_id)
    bounds: dict[str, Any] = {"maxlen": live.STREAM_MAXLEN, "approximate": True}
    if event.event is LiveEvent.SNAPSHOT:
        bounds = {"minid": event.id}
    existing = stream.there and event.event is not LiveEvent.SNAPSHOT
    pipe.xadd(key, live.to_fields(event), id=event.id, nomkstream=existing, **bounds)
    pipe.publish(channel, message)
    if existing:
        return [stream, None]
    stream.there = True
    pipe.expire(key, live.STREAM_EXPIRY_S)
    return [None, None, None]


async def listen_for_cancels(redis_url: str, cancel: Callable[[str], None]) -> None:
    """Call `cancel` with each job id that is announced as cancelled, for ever, through reconnects."""
    while True:
        client: Any = Redis.from_url(redis_url, socket_connect_timeout=1.0, health_check_interval=10)
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
                await pubsub.subscribe(live.CANCEL_CHANNEL)
                async for message in pubsub.listen():
                    cancel(message["data"].decode())
        except (RedisError, OSError) as error:
            log.debug("cancels.redis_away", error=type(error).__name__)
        finally:
            with suppress(RedisError, OSError):
                await client.aclose()
        await asyncio.sleep(_PAUSE_S)
