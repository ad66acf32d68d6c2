"""Waits, in a thread, for the hint that a job has ended."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from redis import Redis
from redis.exceptions import RedisError

from jobs import live
from jobs.live import LiveEvent

_CONFIRMED_WITHIN_S = 1.0


class EndHint:
    """Listens on one job's channel. While Redis is away it waits all the same, so that callers poll."""

    def __init__(self, redis: Redis, job_id: str) -> None:
        """Listen from now on, if Redis is there."""
        self._pubsub: Any = redis.pubsub()  # type: ignore[no-untyped-call]  # redis-py left this one out
        self._channel = live.channel(job_id)
        self._listening = False
        self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pubsub.close()

    def wait(self, timeout_s: float) -> None:
        """Return at the hint, or after `timeout_s` seconds."""
        until = time.monotonic() + timeout_s
        try:
            while (left_s := until - time.monotonic()) > 0 and self._listening:
                message = self._pubsub.get_message(timeout=left_s)
                if message and _says_ended(message):
                    return
        except (RedisError, OSError):
            self._listening = False
        time.sleep(max(0.0, until - time.monotonic()))
        if not self._listening:
            self._listen()

    def _listen(self) -> None:
        try:
            self._pubsub.subscribe(self._channel)
            # Only what is published after the server's answer is sure to come.
            self._listening = self._pubsub.get_message(timeout=_CONFIRMED_WITHIN_S) is not None
        except (RedisError, OSError):
            self._listening = False


def _says_ended(message: Mapping[str, Any]) -> bool:
    return message["type"] == "message" and live.from_message(message["data"]).event is LiveEvent.ENDED
