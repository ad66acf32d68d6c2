"""The embedded servers: they start again after a kill, also in deep directories that only root may enter."""

import os
import signal
from pathlib import Path

import psycopg
import pytest
import redis as redis_client
from redis.backoff import NoBackoff
from redis.retry import Retry

from trilane.stack import ports
from trilane.stack.postgres import Postgres
from trilane.stack.redis import Redis
from trilane.stack.supervisor import Supervisor


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory closed to other users, its path longer than a Unix socket's may be."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir(mode=0o700)
    tmp_path.chmod(0o700)
    return deep


def test_postgres_keeps_its_rows_through_a_kill_and_a_stale_pid_file(home: Path) -> None:
    for start in range(2):
        server = Postgres(home / "postgres", ports.free())
        server.prepare()
        supervisor = Supervisor(home / "logs", print, backoff_s=60.0)
        try:
            supervisor.start(server.part())
            server.create_database()
            with psycopg.connect(server.url) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS marks (start int)")
                connection.execute("INSERT INTO marks VALUES (%s)", (start,))
                marks = connection.execute("SELECT count(*) FROM marks").fetchone()
            os.kill(supervisor.pids()["postgres"], signal.SIGKILL)
        finally:
            supervisor.stop()
        assert marks == (start + 1,)
        assert (home / "postgres" / "data" / "postmaster.pid").exists()


def test_redis_keeps_its_keys_refuses_writes_when_full_and_strangers_always(home: Path) -> None:
    for start in range(2):
        server = Redis(home / "redis", ports.free())
        server.prepare()
        supervisor = Supervisor(home / "logs", print)
        try:
            supervisor.start(server.part())
            client = redis_client.Redis.from_url(server.url)
            assert client.incr("starts") == start + 1
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            port = int(server.url.rpartition(":")[2].partition("/")[0])
            stranger = redis_client.Redis(port=port, retry=Retry(NoBackoff(), 0))
            with pytest.raises(redis_client.AuthenticationError):
                stranger.get("starts")
            client.close()
            stranger.close()
        finally:
            supervisor.stop()


def test_secrets_are_in_files_of_their_owner_alone(home: Path) -> None:
    for server in (Postgres(home / "postgres", ports.free()), Redis(home / "redis", ports.free())):
        server.prepare()
    secret_files = [*home.glob("*/password"), home / "redis" / "valkey.conf"]
    assert len(secret_files) == 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in secret_files)
