"""The queue from Python: enqueue, submit in bulk, wait, cancel; across forks and without Redis."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import redis as redis_client
from sqlalchemy import Engine, text

import producer
from jobs.domain import clock
from jobs.domain.jobs import Status
from jobs.settings import Settings, SettingsError
from jobs.store import feed
from producer import Client, Code, Kind, Refusal, Request, WebhookTarget
from tests.api import Worker
from tests.conftest import Servers
from tests.waiting import until


@pytest.fixture
def client(settings: Settings) -> Iterator[Client]:
    """A client of the test's own database and Redis."""
    made = Client(settings=settings)
    yield made
    made.close()


@pytest.fixture
def worker(engine: Engine, settings: Settings) -> Worker:
    """Ends jobs by hand."""
    return Worker(engine, settings.redis_url)


@pytest.fixture
def shared(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of a process that has only the two addresses."""
    monkeypatch.setenv("TRILANE_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("TRILANE_REDIS_URL", settings.redis_url)
    producer.shared_client.cache_clear()
    yield
    producer.shared_client().close()
    producer.shared_client.cache_clear()


def stored(engine: Engine, columns: str) -> list[Any]:
    with engine.begin() as connection:
        return list(connection.execute(text(f"SELECT {columns} FROM jobs ORDER BY id")))


@pytest.mark.usefixtures("shared")
def test_two_addresses_are_enough_to_enqueue_and_wait(engine: Engine, redis_url: str, worker: Worker) -> None:
    ids = [
        producer.enqueue_chat("What is a queue?", priority=0, max_tokens=7),
        producer.enqueue_ticket([{"role": "user", "content": "It broke."}], metadata={"ticket": "1"}),
        producer.enqueue_report("Sum up.", tenant="acme"),
    ]
    assert [tuple(row) for row in stored(engine, "id::text, kind, lane, queue")] == [
        (ids[0], "chat", "hot", "hot.urgent"),
        (ids[1], "ticket", "warm", "warm.normal"),
        (ids[2], "report", "cold", "cold.normal"),
    ]
    with redis_client.Redis.from_url(redis_url) as broker:
        assert [broker.llen(queue) for queue in ("hot.urgent", "warm.normal", "cold.normal")] == [1, 1, 1]
    worker.claim(ids[0])
    worker.succeed(ids[0], "Orderly.")
    job = producer.wait(ids[0], timeout_s=5)
    assert (job.status, job.result and job.result.output) == (Status.SUCCEEDED, "Orderly.")
    assert producer.get(ids[0]) == job
    assert producer.status(ids[1]) is Status.QUEUED
    assert producer.cancel(ids[1]).status is Status.CANCELLED
    with pytest.raises(Refusal) as refused:
        producer.get(ids[2])
    assert refused.value.code is Code.JOB_NOT_FOUND
    assert producer.get(ids[2], tenant="acme").lane == "cold"


def test_without_addresses_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRILANE_DATABASE_URL", raising=False)
    with pytest.raises(SettingsError, match="TRILANE_DATABASE_URL"):
        Client()


def test_wait_returns_soon_after_the_hint(client: Client, worker: Worker) -> None:
    job_id = client.submit(Request(kind=Kind.CHAT, prompt="x"))
    worker.claim(job_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, job_id, 30)
        until(lambda: worker.listeners(job_id), what="the subscription")
        worker.succeed(job_id, "Orderly.")
        ended_at = clock.now()
        assert waiting.result().status is Status.SUCCEEDED
    assert clock.now() - ended_at < timedelta(seconds=0.8), "sooner than the next look into the database"


def test_wait_finds_the_end_without_a_hint_and_gives_up_in_time(client: Client, worker: Worker) -> None:
    job_id = client.submit(Request(kind=Kind.CHAT, prompt="x"))
    with pytest.raises(TimeoutError, match=job_id):
        client.wait(job_id, timeout_s=0.2)
    worker.claim(job_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, job_id, 30)
        until(lambda: worker.listeners(job_id), what="the subscription")
        worker.succeed(job_id, "Orderly.", hint=False)
        assert waiting.result().status is Status.SUCCEEDED


def test_without_redis_jobs_are_stored_and_waited_for(
    database_url: str, engine: Engine, worker: Worker
) -> None:
    client = Client(database_url, "redis://127.0.0.1:1/0")
    job_id = client.submit(Request(kind=Kind.CHAT, prompt="x"))
    assert stored(engine, "announced_at")[0].announced_at is None, "left to the feeder"
    worker.claim(job_id)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.wait, job_id, 30)
        worker.succeed(job_id, "Orderly.")
        assert waiting.result().status is Status.SUCCEEDED
    client.close()


def test_a_key_makes_one_job_and_conflicts_with_another_request(client: Client, engine: Engine) -> None:
    first = client.submit(Request(kind=Kind.CHAT, prompt="x"), idempotency_key="k")
    assert client.submit(Request(kind=Kind.CHAT, prompt="x", priority=5), idempotency_key="k") == first
    with pytest.raises(Refusal) as refused:
        client.submit(Request(kind=Kind.CHAT, prompt="y"), idempotency_key="k")
    assert refused.value.code is Code.IDEMPOTENCY_CONFLICT
    assert client.submit(Request(kind=Kind.CHAT, prompt="y"), idempotency_key="k", tenant="other") != first
    assert len(stored(engine, "id")) == 2


def test_many_are_stored_in_order_and_left_to_the_feeder(client: Client, engine: Engine) -> None:
    requests: list[Request | dict[str, Any]] = [
        {"kind": "ticket", "prompt": f"number {n}", "priority": n % 10} for n in range(500)
    ]
    requests.append(
        Request(kind=Kind.CHAT, prompt="last", webhook=WebhookTarget(url="https://8.8.8.8", secret=SECRET))
    )
    ids = client.submit_many(requests)
    rows = {row.id: row for row in stored(engine, "id::text, priority, announced_at, kind, webhook_secret")}
    assert [rows[job_id].priority for job_id in ids[:500]] == [n % 10 for n in range(500)]
    assert all(row.announced_at is None for row in rows.values())
    assert SECRET not in rows[ids[-1]].webhook_secret
    with engine.begin() as connection:
        assert len(feed.pick(connection, "warm.normal", 500)) == 200


SECRET = "whsec_" + "c2VjcmV0" * 5


def test_one_bad_request_of_many_stores_none_and_is_named(client: Client, engine: Engine) -> None:
    good = {"kind": "chat", "prompt": "x"}
    for bad, code, field in (
        ({"kind": "chat", "prompt": ""}, Code.EMPTY, "[2].prompt"),
        ({"kind": "chat"}, Code.MISSING_FIELD, "[2].messages"),
        ({**good, "max_tokens": 50_000}, Code.PROMPT_TOO_LONG, "[2].prompt"),
        ({**good, "webhook": {"url": "http://10.0.0.1"}}, Code.WEBHOOK_TARGET_REFUSED, "[2].webhook.url"),
        ({**good, "idempotency_key": "k"}, Code.IDEMPOTENCY_UNSUPPORTED, "idempotency_key"),
    ):
        with pytest.raises(Refusal) as refused:
            client.submit_many([good, good, bad])
        assert (refused.value.code, refused.value.field) == (code, field)
    assert stored(engine, "id") == []


def test_a_new_tenant_made_by_many_threads_is_one(client: Client, engine: Engine) -> None:
    barrier = threading.Barrier(8)

    def submit(_: int) -> str:
        barrier.wait()
        return client.submit(Request(kind=Kind.CHAT, prompt="x"), tenant="new")

    with ThreadPoolExecutor(8) as pool:
        ids = list(pool.map(submit, range(8)))
    assert len(set(ids)) == 8
    assert len({row.tenant_id for row in stored(engine, "tenant_id")}) == 1


def test_a_client_survives_a_fork_in_parent_and_child(settings: Settings, engine: Engine) -> None:
    # In a process of its own: this one has threads, with which a fork is not safe.
    code = """
import os, sys
from producer import enqueue_chat, shared_client, status
mine = enqueue_chat("before the fork")
child = os.fork()
if child == 0:
    enqueue_chat("in the child")
    print(status(mine), flush=True)
    os._exit(0)
os.waitpid(child, 0)
enqueue_chat("in the parent")
print(status(mine))
shared_client().close()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code],
        capture_output=True,
        text=True,
        env={
            **os.environ,
            "TRILANE_DATABASE_URL": settings.database_url,
            "TRILANE_REDIS_URL": settings.redis_url,
        },
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["queued", "queued"], "")
    assert len(stored(engine, "id")) == 3


def test_importing_reads_nothing_and_connects_to_nothing() -> None:
    code = "import producer, sys; print(sorted({'fastapi', 'uvicorn', 'workers'} & set(sys.modules)))"
    environment = {"PATH": os.environ["PATH"], "TRILANE_LEASE__LEASE_S": "no number"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert json.loads(done.stdout.replace("'", '"')) == []


def test_the_database_being_away_is_told_and_nothing_is_kept(
    servers: Servers, settings: Settings, engine: Engine, client: Client
) -> None:
    from jobs.store.engine import is_away

    away = Client(settings.database_url.rpartition("/")[0] + "/none", settings.redis_url)
    with pytest.raises(Exception) as caught:
        away.submit(Request(kind=Kind.CHAT, prompt="x"))
    assert is_away(caught.value)
    away.close()
    assert client.submit(Request(kind=Kind.CHAT, prompt="x"))
