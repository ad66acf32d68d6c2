"""The sweeper: finds lost leases, due jobs, passed deadlines and lost announcements."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import datetime

import structlog
from sqlalchemy import Connection, Engine

from jobs.broker import Announcer
from jobs.settings import Settings
from jobs.store import sweeps, workers
from jobs.store.sweeps import Swept

DUE_EVERY_S = 0.25
SWEEP_EVERY_S = 1.0
FORGET_EVERY_S = 60.0

log = structlog.get_logger()


class Sweeper:
    """One round of everything that is due; the control process calls `step` again and again.

    A lease is called lost only when the database was there for a whole lease, since a worker could not
    renew it before. `ended` is told the jobs that a sweep ended.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        announcer: Announcer,
        ended: Callable[[Iterable[str]], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is a clock in seconds that never goes back."""
        self._settings, self._engine, self._announcer = settings, engine, announcer
        self._ended, self._now = ended, now
        self._next = {self._release_due: 0.0, self._sweep: 0.0, self._forget_workers: 0.0}
        self._every = {
            self._release_due: DUE_EVERY_S,
            self._sweep: SWEEP_EVERY_S,
            self._forget_workers: FORGET_EVERY_S,
        }
        self._watermarks: dict[str, deque[tuple[float, datetime]]] = {}
        self.database_returned()

    def database_returned(self) -> None:
        """The database was away, or this process was not the leader: give all workers time to renew."""
        self._leases_from = self._now() + self._settings.lease.lease_s
        self._watermarks.clear()

    def step(self) -> None:
        """Do what is due now."""
        for work, due in self._next.items():
            if self._now() >= due:
                self._next[work] = self._now() + self._every[work]
                work()

    def _release_due(self) -> None:
        self._repeat("due", sweeps.release_due)

    def _sweep(self) -> None:
        if self._now() >= self._leases_from:
            self._repeat("lease.lost", self._lose_leases)
        self._repeat("deadline.passed", self._expire)
        self._find_lost_announcements()

    def _forget_workers(self) -> None:
        with self._engine.begin() as connection:
            workers.forget_dead(connection)

    def _repeat(self, what: str, sweep: Callable[[Connection], int]) -> None:
        """Sweep in short transactions until nothing is left."""
        while True:
            with self._engine.begin() as connection:
                found = sweep(connection)
            if not found:
                return
            log.info("sweep.found", what=what, jobs=found)

    def _lose_leases(self, connection: Connection) -> int:
        return self._tell(sweeps.lose_leases(connection))

    def _expire(self, connection: Connection) -> int:
        return self._tell(sweeps.expire(connection))

    def _tell(self, swept: list[Swept]) -> int:
        self._ended(str(job.job_id) for job in swept if job.status.terminal)
        return len(swept)

    def _find_lost_announcements(self) -> None:
        """Announce again where a queue is empty, or where later announcements were claimed a while ago.

        Without Redis there is nothing to compare with, and nobody to announce to.
        """
        with self._engine.begin() as connection:
            queues = sweeps.announced_queues(connection)
        depths = self._announcer.depths(queues) if queues else None
        if depths is None:
            return
        for queue, messages in depths.items():
            with self._engine.begin() as connection:
                settled = self._settled(queue, sweeps.watermark(connection, queue))
                if messages and settled is None:
                    continue
                before = settled if messages else None
                lost = sweeps.lose_announcements(connection, queue, before, self._settings.feed.backoff_s)
            if lost:
                log.warning("announcement.lost", queue=queue, jobs=lost)

    def _settled(self, queue: str, watermark: datetime | None) -> datetime | None:
        """The watermark as it was `lost_after_s` ago; None where that is not known."""
        history = self._watermarks.setdefault(queue, deque())
        if watermark is not None:
            history.append((self._now(), watermark))
        settled_until = self._now() - self._settings.feed.lost_after_s
        settled = None
        while history and history[0][0] <= settled_until:
            settled = history.popleft()
        if settled is None:
            return None
        history.appendleft(settled)
        return settled[1]
