"""The control process: one leader sweeps and feeds, one moves batches on, all of them send webhooks."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from jobs import live
from jobs.broker import RETENTION_TASK, Announcer
from jobs.settings import Settings
from jobs.store import batch_steps, endpoint_deliveries, files, sweeps
from jobs.store.engine import is_away, open_engine
from workers.batches import Batches, BatchFormat
from workers.feed import Feeder
from workers.launch import run_control
from workers.shadow import Shadower
from workers.sweep import Sweeper
from workers.webhooks import WebhookSender

# Any constants: the advisory locks of the one that sweeps and feeds, and of the one that has the batches.
_LEADER_LOCK, _BATCHES_LOCK = 7_311_002, 7_311_003
_FEED_EVERY_S = 0.2
_FEED_SOON_S = 0.05
_BATCHES_EVERY_S = 0.5
_BATCHES_NICENESS = 5
_AWAY_PAUSE_S = 0.5
_DAY_S = 86_400

log = structlog.get_logger()


class Leadership:
    """An advisory lock on a connection of its own: at most one process holds it, and its death frees it."""

    def __init__(self, engine: Engine, lock: int) -> None:
        """Ask through `engine`, of whose pool one connection is kept."""
        self._engine, self._lock = engine, lock
        self._connection: Connection | None = None

    def held(self) -> bool:
        """Take or keep the lead; False while another has it. Raises where the database is away."""
        if self._connection is not None:
            self._connection.execute(text("SELECT 1"))
            self._connection.commit()
            return True
        connection = self._engine.connect()
        try:
            got: bool = connection.execute(
                text("SELECT pg_try_advisory_lock(:key)"), {"key": self._lock}
            ).scalar_one()
            connection.commit()
        except SQLAlchemyError:
            connection.close()
            raise
        if got:
            self._connection = connection
        else:
            connection.close()
        return got

    def drop(self) -> None:
        """Give the lead up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.invalidate()
                connection.close()


class ControlService:
    """The pool's service for the control queue, with the loops beside it; they run while Redis is away."""

    capacity = 1

    def __init__(self, settings: Settings, batch_format: BatchFormat) -> None:
        """Open nothing yet."""
        self._settings, self._batch_format = settings, batch_format
        self.wake: Callable[[], None] = lambda: None
        self._stopping = threading.Event()

    async def start(self) -> None:
        """Start the loops."""
        # Two leaders' locks, their loops, the retention task, and one for each webhook thread that settles.
        self._db = open_engine(self._settings.database_url, pool_size=10)
        self._announcer = Announcer(self._settings)
        self._webhooks = WebhookSender(self._settings, self._db)
        self._webhooks.start()
        self._threads = [
            threading.Thread(target=self._lead, name="lead", daemon=True),
            threading.Thread(target=self._keep_batches, name="batches", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        log.info("control.ready")

    def offer(self, queue: str, job_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Jobs are not for the control process."""
        log.error("control.got_jobs", queue=queue, jobs=len(job_ids))
        done()

    def order(self, queues: Sequence[str]) -> list[str]:
        """All of them; none while stopping."""
        return [] if self._stopping.is_set() else list(queues)

    def more(self, queue: str) -> int:
        """None: what beat schedules comes once an hour."""
        return 0

    async def handle(self, task: str, args: list[Any]) -> None:
        """Carry out what beat schedules."""
        if task != RETENTION_TASK:
            raise ValueError(f"unknown control task {task}")
        await asyncio.to_thread(self._forget)

    def _forget(self) -> None:
        age_s = self._settings.retention.days * _DAY_S
        jobs = self._until_none(lambda connection: sweeps.forget(connection, age_s))
        self._until_none(lambda connection: batch_steps.forget_items(connection, age_s))
        self._until_none(lambda connection: endpoint_deliveries.forget(connection, age_s))
        log.info("retention.done", jobs=jobs, files=self._until_none(files.forget_expired))

    def _until_none(self, forget: Callable[[Connection], int]) -> int:
        """Delete in short transactions until nothing is left; how much it was."""
        forgotten = 0
        while not self._stopping.is_set():
            with self._db.begin() as connection:
                found = forget(connection)
            if not found:
                break
            forgotten += found
        return forgotten

    async def drain(self, grace_s: float) -> None:
        """Stop the loops; leases cover a webhook that is under way."""
        self._stopping.set()
        await asyncio.to_thread(self._webhooks.stop, grace_s)

    async def stop(self) -> None:
        """Close what was opened."""
        self._stopping.set()
        for thread in self._threads:
            await asyncio.to_thread(thread.join, _AWAY_PAUSE_S * 4)
        self._db.dispose()

    def _lead(self) -> None:
        feeder = Feeder(self._settings, self._db, self._announcer)
        sweeper = Sweeper(self._settings, self._db, self._announcer, self._tell_ended)
        shadower = Shadower(self._settings, self._db)

        def began() -> None:
            log.info("control.leads")
            sweeper.database_returned()

        def step() -> float:
            sweeper.step()
            shadower.step()
            return _FEED_SOON_S if feeder.step() else _FEED_EVERY_S

        self._hold(_LEADER_LOCK, began, step)

    def _keep_batches(self) -> None:
        # A thread of its own, and a humble one: validating a file is seconds of pure computing.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _BATCHES_NICENESS)
        batches = Batches(self._db, self._announcer, self._batch_format, self._stopping.is_set)

        def step() -> float:
            batches.step()
            return _BATCHES_EVERY_S

        self._hold(_BATCHES_LOCK, lambda: log.info("batches.leads"), step)

    def _hold(self, lock: int, began: Callable[[], None], step: Callable[[], float]) -> None:
        """While this process has the lock, repeat `step`, which answers the seconds until its next turn."""
        leadership = Leadership(self._db, lock)
        leading = False
        while not self._stopping.is_set():
            pause_s = _AWAY_PAUSE_S
            try:
                if leadership.held():
                    if not leading:
                        began()
                        leading = True
                    pause_s = step()
            except Exception as error:  # the loop must outlive whatever one round meets
                leading = False
                leadership.drop()
                if is_away(error):
                    log.warning("control.database_away")
                else:
                    log.error("control.round_failed", exc_info=error)
            self._stopping.wait(pause_s)
        leadership.drop()

    def _tell_ended(self, job_ids: Iterable[str]) -> None:
        ended = live.to_message(live.ENDED)
        self._announcer.publish((live.channel(job_id), ended) for job_id in job_ids)


def run(settings: Settings, batch_format: BatchFormat) -> int:
    """Run the control process until SIGTERM; returns its exit code."""
    return run_control(settings, service=ControlService(settings, batch_format))
