"""The database goes away under load and comes back: nothing accepted is lost, nothing is done twice."""

import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import SQLAlchemyError

from jobs.domain.lanes import Kind
from jobs.settings import Settings, load
from jobs.store.engine import is_away, open_engine
from migrations import commands
from producer.client import Client
from tests.conftest import SECRET_KEY
from tests.processes import Processes
from tests.waiting import until
from trilane.stack import ports
from trilane.stack.postgres import Postgres
from trilane.stack.supervisor import Supervisor

OUTAGE_S = 5.0
LEASE_S = 4.0  # every lease runs out meanwhile, and none may be called lost for that
PACE_S = 0.08
# 60 tokens take the better part of a second.
SLOW: dict[str, Any] = {"time_scale": 1.0, "step_ms": [[1, 10.0], [8, 12.0]]}


class Server:
    """A Postgres of the test's own, which can crash."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.postgres = Postgres(home, ports.free())
        self.postgres.prepare()
        self.start()
        self.postgres.create_database()

    def start(self) -> None:
        # An immediate shutdown: no checkpoint, no goodbye to the clients, a recovery at the next start.
        part = replace(self.postgres.part(), stop_signal=signal.SIGQUIT)
        self._supervisor = Supervisor(self._home / "logs", lambda line: None)
        self._supervisor.start(part)

    def stop(self) -> None:
        self._supervisor.stop()


@pytest.fixture
def server() -> Iterator[Server]:
    # Not pytest's own directory: the server runs as another user and must be able to enter.
    home = Path(tempfile.mkdtemp(prefix="trilane-test-"))
    home.chmod(0o755)
    server = Server(home)
    yield server
    server.stop()
    shutil.rmtree(home)


@pytest.fixture
def settings(server: Server, redis_url: str) -> Settings:
    return load(database_url=server.postgres.url, redis_url=redis_url, secret_key=SECRET_KEY)


@pytest.fixture
def engine(settings: Settings) -> Iterator[Engine]:
    opened = open_engine(settings.database_url)
    commands.upgrade(opened)
    yield opened
    opened.dispose()


class Load:
    """A producer that submits all the while, and keeps what it was told."""

    def __init__(self, settings: Settings) -> None:
        self.accepted: list[str] = []
        self.errors: list[SQLAlchemyError] = []
        self._client = Client(settings=settings)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._submit)
        self._thread.start()

    def _submit(self) -> None:
        while not self._stopping.wait(PACE_S):
            try:
                self.accepted.append(self._client.enqueue(Kind.TICKET, "What are your hours?", max_tokens=60))
            except SQLAlchemyError as error:
                self.errors.append(error)

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()


def test_five_seconds_without_the_database_lose_nothing_and_repeat_nothing(
    processes: Processes, server: Server, settings: Settings, engine: Engine
) -> None:
    processes.environment |= {"TRILANE_LEASE__LEASE_S": str(LEASE_S), "TRILANE_FEED__BACKOFF_S": "1"}
    running = [processes.control(), processes.worker(**SLOW), processes.worker(**SLOW)]
    producer = Load(settings)
    try:
        until(lambda: processes.count("jobs", "status = 'running'") > 4, what="jobs under way")
        server.stop()
        stopped_at, before = time.monotonic(), len(producer.accepted)
        until(lambda: time.monotonic() - stopped_at > OUTAGE_S, what="the end of the outage")
        server.start()
        until(lambda: len(producer.accepted) >= before + 20, what="jobs accepted after the outage")
    finally:
        producer.stop()
    until(lambda: processes.count("jobs", "status <> 'succeeded'") == 0, 60, "every job's end")

    with engine.begin() as connection:
        answered = {str(row.job_id) for row in connection.execute(text("SELECT job_id FROM results"))}
    assert set(producer.accepted) <= answered
    assert producer.errors
    assert all(is_away(error) for error in producer.errors)
    # A commit whose answer was lost on the way counts as an error to the producer, and is a job all the same.
    jobs = processes.count("jobs")
    assert len(producer.accepted) <= jobs <= len(producer.accepted) + len(producer.errors)
    assert processes.count("latency_records") == jobs, "one attempt each: no lease was called lost"
    assert processes.count("jobs", "attempt <> 1 OR failures <> 0") == 0
    assert [process.poll() for process in running] == [None] * 3
