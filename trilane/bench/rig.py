"""What a benchmark runs on: the local stack's own servers in a temporary directory, and its processes."""

import json
import secrets
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, text

from jobs import settings as settings_module
from jobs.settings import Settings
from jobs.store import workers
from jobs.store.engine import open_engine
from migrations import commands as migrations
from trilane.stack import ports
from trilane.stack.postgres import Postgres
from trilane.stack.redis import Redis
from trilane.stack.supervisor import Part, Supervisor

Say = Callable[[str], None]
START_S = 600.0  # vLLM takes a minute, on a busy machine several


@dataclass(frozen=True)
class Rig:
    """Postgres and Redis that nobody else uses, and a way to start processes on them."""

    settings: Settings
    database: Engine
    server_pids: Mapping[str, int]
    logs: Path
    say: Say

    def sql(self, statement: str) -> Any:
        """Run one statement in a transaction of its own; the first column of its first row, if any."""
        with self.database.begin() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None

    def environment(self) -> dict[str, str]:
        """The settings as the environment of a process."""
        return {
            "TRILANE_DATABASE_URL": self.settings.database_url,
            "TRILANE_REDIS_URL": self.settings.redis_url,
            "TRILANE_SECRET_KEY": secrets.token_urlsafe(32),
            "TRILANE_LANE": json.dumps(self.settings.lane),
        }

    @contextmanager
    def process(
        self, name: str, *module_and_arguments: str, ready: Callable[[], bool] = lambda: True, **env: str
    ) -> Iterator[psutil.Process]:
        """Run `python -m ...` with these settings and `env` in its environment; it ends with the block."""
        argv = [sys.executable, "-m", *module_and_arguments]
        supervisor = Supervisor(self.logs, self.say)
        try:
            supervisor.start(Part(name, argv, self.environment() | env, ready, start_timeout_s=START_S))
            yield psutil.Process(supervisor.pids()[name])
        finally:
            supervisor.stop()

    @contextmanager
    def worker(self, lane: str, engine: str, **env: str) -> Iterator[psutil.Process]:
        """One worker process of `lane`, its engine warm."""
        arguments = ("trilane", "worker", "--lanes", lane, "--engine", engine)
        with self.process("worker", *arguments, ready=self._has_worker, **env) as process:
            yield process

    def _has_worker(self) -> bool:
        with self.database.begin() as connection:
            return any(worker.state is workers.WorkerState.READY for worker in workers.alive(connection))


@contextmanager
def servers(say: Say, lane: Mapping[str, Mapping[str, Any]]) -> Iterator[Rig]:
    """Start both servers with an empty, migrated database; `lane` overrides lane policies.

    Raises `trilane.stack.StackError` where they cannot start.
    """
    with tempfile.TemporaryDirectory(prefix="trilane-bench-") as directory:
        home = Path(directory)
        postgres, redis = Postgres(home / "postgres", ports.free()), Redis(home / "redis", ports.free())
        supervisor = Supervisor(home / "logs", say)
        try:
            for server in (postgres, redis):
                server.prepare()
            supervisor.start(postgres.part(), redis.part())
            postgres.create_database()
            settings = settings_module.load(database_url=postgres.url, redis_url=redis.url, lane=lane)
            database = open_engine(settings.database_url, pool_size=2)
            migrations.upgrade(database)
            yield Rig(settings, database, supervisor.pids(), home / "logs", say)
            database.dispose()
        finally:
            supervisor.stop()
