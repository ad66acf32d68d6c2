"""Real servers for the tests, from wheels: one Postgres and one Redis a run, a fresh database a test."""

import logging
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pytest
import redis as redis_client
import structlog
from sqlalchemy import Engine

from jobs.domain import clock
from jobs.domain.jobs import NewJob, new_id, prefix_of
from jobs.domain.lanes import Kind, queue_name
from jobs.secrets import Vault, new_signing_secret
from jobs.settings import Settings, load
from jobs.store import tenants
from jobs.store.engine import open_engine
from migrations import commands
from trilane.stack import ports
from trilane.stack.postgres import Postgres
from trilane.stack.redis import Redis
from trilane.stack.supervisor import Supervisor

SECRET_KEY = "a secret key that only the tests know, and no one else"


@dataclass
class Servers:
    """The run's own Postgres and Redis, and a way to the server's maintenance database."""

    database_url: str
    redis_url: str

    def admin(self, statement: str) -> None:
        """Run one statement outside any transaction, beside the tests' databases."""
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            connection.execute(statement)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """What a test configures, a command that it runs in this process for one, ends with it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Postgres with a migrated template database, and Redis."""
    # Not pytest's own directory: the database server runs as another user and must be able to enter.
    home = Path(tempfile.mkdtemp(prefix="trilane-test-"))
    home.chmod(0o755)
    for name in ("postgres", "redis"):
        (home / name).mkdir()
    postgres = Postgres(home / "postgres", ports.free())
    redis = Redis(home / "redis", ports.free())
    supervisor = Supervisor(home / "logs", lambda line: None)
    try:
        postgres.prepare()
        redis.prepare()
        supervisor.start(postgres.part(), redis.part())
        postgres.create_database()
        servers = Servers(postgres.url, redis.url)
        servers.admin("CREATE DATABASE template_trilane")
        template = open_engine(_renamed(postgres.url, "template_trilane"))
        commands.upgrade(template)
        template.dispose()
        yield servers
    finally:
        supervisor.stop()
        shutil.rmtree(home, ignore_errors=True)


def _renamed(url: str, database: str) -> str:
    return f"{url.rpartition('/')[0]}/{database}"


@pytest.fixture
def database_url(servers: Servers) -> Iterator[str]:
    """A fresh, migrated database."""
    name = f"test_{new_id().hex}"
    servers.admin(f"CREATE DATABASE {name} TEMPLATE template_trilane")
    yield _renamed(servers.database_url, name)
    servers.admin(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """The run's Redis, emptied."""
    client = redis_client.Redis.from_url(servers.redis_url)
    client.flushall()
    client.close()
    return servers.redis_url


@pytest.fixture
def settings(database_url: str, redis_url: str) -> Settings:
    """Settings of a stack on the test's own database and Redis."""
    return load(database_url=database_url, redis_url=redis_url, secret_key=SECRET_KEY)


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    """A pool on the test's own database."""
    opened = open_engine(database_url, pool_size=8)
    yield opened
    opened.dispose()


@pytest.fixture
def tenant(engine: Engine, settings: Settings) -> tenants.Tenant:
    """A tenant with a signing secret."""
    with engine.begin() as connection:
        made = tenants.create(connection, "acme", Vault(settings).encrypt(new_signing_secret()))
    assert made is not None
    return made


class JobMaker(Protocol):
    """Makes a request that was checked and routed; every field can be set."""

    def __call__(self, **fields: Any) -> NewJob: ...


@pytest.fixture
def new_job(tenant: tenants.Tenant, settings: Settings) -> JobMaker:
    """Makes new jobs of the tenant: warm tickets, unless the fields say otherwise."""

    def make(text: str = "What are your hours?", **fields: Any) -> NewJob:
        given: dict[str, Any] = {
            "id": new_id(),
            "tenant_id": tenant.id,
            "kind": Kind.TICKET,
            "model": settings.model,
            "lane": "warm",
            "priority": 5,
            "request": {
                "messages": [{"role": "user", "content": text}],
                "sampling": {"max_tokens": 16},
            },
            "prompt_tokens": 12,
            "prefix": prefix_of(text),
            "deadline": clock.now() + timedelta(hours=24),
        } | fields
        given.setdefault("queue", queue_name(given["lane"], given["priority"]))
        return NewJob(**given)

    return make
