"""Turns speculation off where too few of its candidates are accepted, and remembers that over a restart."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import structlog
from redis import Redis
from redis.exceptions import RedisError

from jobs.domain.policies import SpeculationPolicy
from workers.engines.seam import Engine, EngineStats

LOOK_EVERY_S = 5.0
LOOKS = 60  # in a row while the engine works, so five minutes of work
OFF_FOR_S = 86_400  # then it is tried again: the work may have changed

log = structlog.get_logger()


class TooFew:
    """Judges one engine's acceptance, look by look; an idle engine tells nothing new."""

    def __init__(self, min_acceptance: float) -> None:
        self._least, self._low = min_acceptance, 0

    def see(self, stats: EngineStats) -> bool:
        """Whether `LOOKS` in a row, this the last, were below the least."""
        if stats.running and stats.spec_acceptance is not None:
            self._low = self._low + 1 if stats.spec_acceptance < self._least else 0
        return self._low >= LOOKS


class Memory:
    """What is known of the speculation of one model on the lanes of a worker.

    It lies in Redis, which may lose it: then the lane speculates again, until it is found out again.
    """

    def __init__(self, redis_url: str, model: str, lanes: Sequence[str]) -> None:
        """Connect to nothing yet."""
        self._redis: Any = Redis.from_url(redis_url, socket_timeout=2.0, socket_connect_timeout=1.0)
        self._key = f"trilane:speculation-off:{'-'.join(lanes)}:{model}"

    def is_off(self, speculation: SpeculationPolicy) -> bool:
        """Whether just this policy was turned off in the last day; another policy has its own chance."""
        try:
            return bool(self._redis.get(self._key) == _as_bytes(speculation))
        except RedisError as error:
            log.warning("speculation.not_known", error=type(error).__name__)
            return False

    def turn_off(self, speculation: SpeculationPolicy) -> None:
        """Remember it for a day, or until the policy changes."""
        try:
            self._redis.set(self._key, _as_bytes(speculation), ex=OFF_FOR_S)
        except RedisError as error:
            log.warning("speculation.not_remembered", error=type(error).__name__)


def _as_bytes(speculation: SpeculationPolicy) -> bytes:
    return json.dumps(asdict(speculation), sort_keys=True).encode()


async def watch(
    engine: Engine, speculation: SpeculationPolicy, memory: Memory, is_idle: Callable[[], bool]
) -> None:
    """Return once the worker should start anew without speculation: turned off, and nothing to do."""
    judge = TooFew(speculation.min_acceptance)
    while not judge.see(stats := engine.stats()):  # noqa: ASYNC110 - an engine's figures are asked for
        await asyncio.sleep(LOOK_EVERY_S)
    await asyncio.to_thread(memory.turn_off, speculation)
    log.warning(
        "speculation.turned_off",
        acceptance=stats.spec_acceptance,
        least=speculation.min_acceptance,
        at="next idle restart",
    )
    while not is_idle():  # noqa: ASYNC110 - a worker is idle between two jobs, and nothing tells of that
        await asyncio.sleep(LOOK_EVERY_S)
