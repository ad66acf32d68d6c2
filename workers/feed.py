"""The feeder: announces what waits in Postgres, in windows, so that Redis stays small."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import structlog
from sqlalchemy import Engine

from jobs.broker import Announcer
from jobs.domain.lanes import parse_queue
from jobs.settings import Settings
from jobs.store import feed, sweeps
from jobs.store.feed import Picked

log = structlog.get_logger()
T = TypeVar("T")


class Feeder:
    """Tops each queue up to its window once half of it was claimed."""

    def __init__(self, settings: Settings, engine: Engine, announcer: Announcer) -> None:
        """Read from `engine`, announce through `announcer`."""
        self._settings, self._engine, self._announcer = settings, engine, announcer

    def step(self) -> bool:
        """Announce what has room; True where more waits for room, so that the next step should come soon.

        Nothing is marked as announced while Redis is away.
        """
        with self._engine.begin() as connection:
            queues = feed.ready_queues(connection)
        if not queues or self._announcer.depths(queues) is None:
            return False
        more = [self._top_up(queue) for queue in queues]
        return any(more)

    def _top_up(self, queue: str) -> bool:
        window = self._settings.feed.window
        with self._engine.begin() as connection:
            standing = feed.standing(connection, queue, window)
            if standing > window // 2:
                return True
            picked = feed.pick(connection, queue, window - standing)
        messages = list(self._messages(queue, picked))
        if not self._announcer.announce_many((queue, ids) for ids in messages):
            with self._engine.begin() as connection:
                sweeps.mark_unannounced(connection, [job.id for job in picked])
            return False
        log.debug("feed.announced", queue=queue, jobs=len(picked))
        return len(picked) == window - standing

    def _messages(self, queue: str, picked: Sequence[Picked]) -> Iterator[list[str]]:
        """Messages that an idle worker of the lane can start whole; equal prompt beginnings go together.

        Only neighbours of one stretch are brought together, so that the order of the turns is kept.
        """
        lane, _, _ = parse_queue(queue)
        size = min(self._settings.feed.message_ids, self._settings.lanes[lane].limit)
        for stretch in _stretches(picked, size * 8):
            by_prefix = sorted(stretch, key=lambda job: job.prefix)
            for ids in _stretches([job.id for job in by_prefix], size):
                yield [str(job_id) for job_id in ids]


def _stretches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
