"""Event streams over HTTP: live text, resumption, lost hints, Redis restarting, a thousand clients."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_client

from jobs import live
from jobs.live import LiveEvent
from producer.api import events, hub
from producer.refusals import Code
from tests.api import Api
from tests.waiting import until

CLIENTS = 1_000


class Stream:
    """An open stream; its events are read one by one."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.last_id: str | None = None

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next event's type and data."""
        event = ""
        for line in self._lines:
            name, _, value = line.partition(": ")
            if name == "id":
                self.last_id = value
            elif name == "event":
                event = value
            elif name == "data":
                return event, json.loads(value)
        raise EOFError("the stream has ended")

    def rest(self) -> list[tuple[str, dict[str, Any]]]:
        """All further events until the stream closes."""
        found = []
        try:
            while True:
                found.append(self.next())
        except EOFError:
            return found


@contextmanager
def following(api: Api, job_id: str, last_id: str | None = None) -> Iterator[Stream]:
    headers = {"Last-Event-ID": last_id} if last_id else {}
    with api.client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer.iter_lines())


def test_a_queued_job_is_followed_to_its_end(api: Api) -> None:
    worker, job_id = api.worker(), api.accept()
    with following(api, job_id) as stream:
        assert stream.next() == ("status", {"status": "queued", "attempt": 0})
        worker.claim(job_id)
        worker.tell(job_id, "1-1", LiveEvent.STATUS, status="running", attempt=1)
        worker.tell(job_id, "1-2", LiveEvent.TEXT, text="Order")
        worker.tell(job_id, "1-3", LiveEvent.TEXT, text="ly. 好")
        assert stream.next() == ("status", {"status": "running", "attempt": 1})
        assert stream.next() == ("text", {"text": "Order"})
        assert stream.next() == ("text", {"text": "ly. 好"})
        assert stream.last_id == "1-3"
        worker.succeed(job_id, "Orderly. 好")
        event, job = stream.next()
        assert (event, job) == ("ended", api.client.get(f"/v1/jobs/{job_id}").json())
        assert stream.rest() == []


def test_a_late_or_resuming_client_gets_exactly_what_it_lacks(api: Api) -> None:
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    for number, text in enumerate("abcd", start=1):
        worker.tell(job_id, f"1-{number}", LiveEvent.TEXT, text=text)
    with following(api, job_id) as late, following(api, job_id, last_id="1-2") as resumed:
        assert late.next()[1]["status"] == resumed.next()[1]["status"] == "running"
        assert [late.next()[1]["text"] for _ in range(4)] == list("abcd")
        assert [resumed.next()[1]["text"] for _ in range(2)] == list("cd")
        worker.tell(job_id, "2-1", LiveEvent.RESET, attempt=2)
        worker.tell(job_id, "2-2", LiveEvent.TEXT, text="e")
        for stream in (late, resumed):
            assert stream.next() == ("reset", {"attempt": 2})
            assert stream.next() == ("text", {"text": "e"})
        worker.succeed(job_id, "e")
        assert [event for event, _ in late.rest()] == [event for event, _ in resumed.rest()] == ["ended"]


@pytest.mark.parametrize("last_id", [None, "1-1"])
def test_an_ended_job_answers_its_whole_text_and_its_end(api: Api, last_id: str | None) -> None:
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    worker.succeed(job_id, "Orderly.")
    with following(api, job_id, last_id) as stream:
        (first, status), (second, text), (third, job) = stream.rest()
    assert (first, status["status"], second, text, third) == (
        "status", "succeeded", "snapshot", {"text": "Orderly."}, "ended",
    )  # fmt: skip
    assert job["result"]["output"] == "Orderly."


def test_a_cancelled_job_ends_its_streams_at_once(api: Api) -> None:
    job_id = api.accept()
    with following(api, job_id) as stream:
        stream.next()
        api.post(f"/v1/jobs/{job_id}/cancel")
        [(event, job)] = stream.rest()
    assert (event, job["status"], job["result"]) == ("ended", "cancelled", None)


def test_without_any_hint_the_end_is_found_and_the_text_is_whole(api: Api, redis_url: str) -> None:
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    with following(api, job_id) as stream:
        worker.tell(job_id, "1-1", LiveEvent.TEXT, text="Ord")
        assert [stream.next()[0] for _ in range(2)] == ["status", "text"]
        worker.succeed(job_id, "Orderly.", hint=False)
        (event, text), (last, _) = stream.rest()
    assert (event, text, last) == ("snapshot", {"text": "Orderly."}, "ended")


def test_a_subscription_that_was_cut_is_made_again_and_nothing_is_missed(api: Api, redis_url: str) -> None:
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    with redis_client.Redis.from_url(redis_url) as broker, following(api, job_id) as stream:
        worker.tell(job_id, "1-1", LiveEvent.TEXT, text="a")
        assert [stream.next()[0] for _ in range(2)] == ["status", "text"]
        broker.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        worker.tell(job_id, "1-2", LiveEvent.TEXT, text="b")
        assert stream.next() == ("text", {"text": "b"})
        channel = live.channel(job_id)
        until(lambda: broker.pubsub_numsub(channel)[0][1] == 1, what="the new subscription")
        worker.tell(job_id, "1-3", LiveEvent.TEXT, text="c")
        assert stream.next() == ("text", {"text": "c"})
        worker.succeed(job_id, "abc")
        assert [event for event, _ in stream.rest()] == ["ended"]


def test_a_client_that_reads_slowly_loses_no_text(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "_EVENTS_KEPT", 2)
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    with following(api, job_id) as stream:
        stream.next()
        for number in range(1, 101):
            worker.tell(job_id, f"1-{number}", LiveEvent.TEXT, text=f"{number} ")
        whole = "".join(f"{number} " for number in range(1, 101))
        worker.succeed(job_id, whole)
        *texts, (last, _) = stream.rest()
    assert "".join(data["text"] for _, data in texts) == whole
    assert last == "ended"


def test_an_idle_stream_is_kept_open_by_comments(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.05)
    job_id = api.accept()
    with api.client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith(":"))


def test_subscriptions_end_with_their_streams(api: Api, redis_url: str) -> None:
    job_id = api.accept()
    channel = live.channel(job_id)
    with redis_client.Redis.from_url(redis_url) as broker:
        with following(api, job_id), following(api, job_id):
            until(lambda: broker.pubsub_numsub(channel)[0][1] == 1, what="one subscription")
        until(lambda: broker.pubsub_numsub(channel)[0][1] == 0, what="its end")


def test_a_bad_event_id_is_refused(api: Api) -> None:
    answer = api.client.get(f"/v1/jobs/{api.accept()}/events", headers={"Last-Event-ID": "yesterday"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, Code.INVALID_VALUE)


def test_a_thousand_clients_wait_at_once_and_cost_no_thread(api: Api, redis_url: str) -> None:
    worker = api.worker()
    shared, others = api.accept(), [api.accept() for _ in range(20)]
    jobs = [shared] * (CLIENTS - len(others)) + others
    for job_id in (shared, *others):
        worker.claim(job_id)
    before = threading.active_count()
    opened = threading.Semaphore(0)

    async def follow(job_id: str) -> str:
        host, port = api.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"GET /v1/jobs/{job_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {api.key}\r\n\r\n"
        writer.write(head.encode())
        await reader.readuntil(b"event: status")
        opened.release()
        received = (await reader.readuntil(b"event: ended")).decode()
        writer.close()
        texts = [
            json.loads(line[6:])["text"] for line in received.splitlines() if line.startswith('data: {"te')
        ]
        return "".join(texts)

    async def all_follow() -> list[str]:
        async with asyncio.timeout(60):
            return await asyncio.gather(*(follow(job_id) for job_id in jobs))

    with ThreadPoolExecutor(1) as pool:
        received = pool.submit(asyncio.run, all_follow())
        for _ in range(CLIENTS):
            assert opened.acquire(timeout=30)
        assert threading.active_count() <= before + api.settings.api.db_threads + 1
        with redis_client.Redis.from_url(redis_url) as broker:
            assert len(broker.client_list(_type="pubsub")) == 1
        for job_id in (shared, *others):
            worker.tell(job_id, "1-1", LiveEvent.TEXT, text="Order")
            worker.tell(job_id, "1-2", LiveEvent.TEXT, text="ly.")
        for job_id in (shared, *others):
            worker.succeed(job_id, "Orderly.")
        assert received.result(timeout=60) == ["Orderly."] * CLIENTS


def test_a_stopping_server_ends_its_streams(api: Api) -> None:
    job_id = api.accept()
    with following(api, job_id) as stream:
        stream.next()
        api.stop()
        assert stream.rest() == []
