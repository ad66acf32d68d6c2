"""The HTTP API on a real server in this process, and what a worker would do to its jobs."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import redis
import uvicorn
from sqlalchemy import Engine, text

from jobs import live
from jobs.domain.jobs import Move
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import FinishReason, Usage
from jobs.live import Event, LiveEvent
from jobs.settings import Settings
from jobs.store import claims, records, tenants
from jobs.store.records import Answer, Ending
from producer.api.app import make_server
from tests.waiting import until


@dataclass
class Api:
    """A running API, a client with a tenant's key, and the database behind it."""

    url: str
    key: str
    client: httpx.Client
    engine: Engine
    settings: Settings
    server: uvicorn.Server

    def stop(self) -> None:
        """Tell the server to stop, as SIGTERM does."""
        self.server.should_exit = True

    def post(self, path: str = "/v1/jobs", **body: Any) -> httpx.Response:
        """POST a JSON body."""
        return self.client.post(path, json=body)

    def accept(self, **body: Any) -> str:
        """The id of a new job, a chat turn unless the body says otherwise."""
        answer = self.post(**{"kind": "chat", "prompt": "What is a queue?", **body})
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def rows(self) -> int:
        """How many jobs are stored."""
        with self.engine.begin() as connection:
            return int(connection.execute(text("SELECT count(*) FROM jobs")).scalar_one())

    def worker(self) -> "Worker":
        """A worker for its jobs."""
        return Worker(self.engine, self.settings.redis_url)

    def key_of(self, name: str) -> str:
        """A key of another tenant."""
        with self.engine.begin() as connection:
            return tenants.create_key(connection, tenants.get_or_create(connection, name).id)


@contextmanager
def serving(settings: Settings, engine: Engine, tenant: tenants.Tenant) -> Iterator[Api]:
    """The API on a free port, in a thread of its own."""
    with engine.begin() as connection:
        key = tenants.create_key(connection, tenant.id)
    server = make_server(settings.model_copy(update={"api": settings.api.model_copy(update={"port": 0})}))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, what="the API's start")
        url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30) as client:
            yield Api(url, key, client, engine, settings, server)
    finally:
        server.should_exit = True
        thread.join()


class Worker:
    """Does by hand what a worker does: claims jobs, tells of them, records how they ended."""

    def __init__(self, engine: Engine, redis_url: str) -> None:
        self._engine = engine
        self._redis: Any = redis.Redis.from_url(redis_url)

    def claim(self, job_id: str) -> int:
        """Start the job; returns the attempt."""
        with self._engine.begin() as connection:
            [claimed] = claims.claim(connection, [uuid.UUID(job_id)], "by hand", 60.0)
        return claimed.attempt

    def tell(self, job_id: str, event_id: str, event: LiveEvent, **data: Any) -> None:
        """Send a live event."""
        told = Event(event_id, event, data)
        self._redis.xadd(live.stream_key(job_id), live.to_fields(told), id=event_id)
        self._redis.publish(live.channel(job_id), live.to_message(told))

    def listeners(self, job_id: str) -> int:
        """How many subscriptions there are to the job's events."""
        [(_, count)] = self._redis.pubsub_numsub(live.channel(job_id))
        return int(count)

    def succeed(self, job_id: str, output: str, *, attempt: int = 1, hint: bool = True) -> None:
        """Record the answer, and say so unless the hint is to be lost."""
        answer = Answer(output, FinishReason.STOP, Usage(12, 4, 0))
        self._record(Ending(uuid.UUID(job_id), attempt, Move.SUCCEED, _LATENCY, answer), hint)

    def fail(self, job_id: str, *, attempt: int = 1) -> None:
        """Record a failure."""
        ending = Ending(uuid.UUID(job_id), attempt, Move.FAIL, _LATENCY, error_code="engine_error")
        self._record(ending, hint=True)

    def _record(self, ending: Ending, hint: bool) -> None:
        with self._engine.begin() as connection:
            records.record(connection, [ending])
        if hint:
            self.hint_end(str(ending.job_id))

    def hint_end(self, job_id: str) -> None:
        """Say that the job has ended."""
        self._redis.publish(live.channel(job_id), live.to_message(live.ENDED))


_LATENCY = LatencyRecord("succeeded", "hot", worker="by hand", queue_ms=1.0, ttft_ms=2.5, total_ms=12.5)
