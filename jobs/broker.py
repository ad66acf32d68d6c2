"""The broker: the Celery app that names the lanes' queues, and the announcer that puts job ids on them.

A message carries job ids and nothing else. Postgres knows the jobs, so a message may be lost or come
twice without harm, and nothing here ever raises because Redis is away.
"""

import base64
import functools
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import redis
import structlog
from celery import Celery, bootsteps
from celery.utils.nodenames import anon_nodename
from kombu.entity import Exchange, Queue
from redis.backoff import NoBackoff
from redis.retry import Retry

from jobs.domain.lanes import queue_name
from jobs.settings import Settings

LANE_TASK = "lane.run"
CONTROL_QUEUE = "control"
RETENTION_TASK = "control.retention"

_PIPELINE_MESSAGES = 500  # about half a megabyte in one write
_IDS_SHOWN = 8  # ids of one message that Flower's task list shows

log = structlog.get_logger()
T = TypeVar("T")


# --- the Celery app ---------------------------------------------------------------------------------


class PoolGuard(bootsteps.Step):  # type: ignore[misc]  # Celery ships no types
    """Refuses to start a worker of this app under any pool but Trilane's own."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        """Raise `SystemExit` with the reason, before any pool exists."""
        if getattr(worker.pool_cls, "service", None) is None:
            raise SystemExit(
                f"Refused: this worker would run under the pool {worker.pool_cls.__module__}, which forks or"
                " blocks and knows no lanes. Jobs run only in Trilane's own pool: start `trilane worker`."
            )
        super().__init__(worker, **kwargs)


def create_app(settings: Settings) -> Celery:
    """The Celery app of workers, beat and Flower. It connects to nothing before it is used."""
    app = Celery("trilane", broker=settings.redis_url, set_as_current=False)
    app.conf.update(
        task_queues=[queue(name) for name in (*all_queues(settings), CONTROL_QUEUE)],
        task_default_queue=CONTROL_QUEUE,
        task_default_exchange="",
        task_default_routing_key=CONTROL_QUEUE,
        task_create_missing_queues=False,
        task_serializer="json",
        event_serializer="json",
        accept_content=["json"],
        task_acks_late=True,
        task_ignore_result=True,
        task_send_sent_event=False,
        worker_send_task_events=True,
        worker_prefetch_multiplier=1,
        worker_enable_prefetch_count_reduction=False,
        worker_disable_rate_limits=True,
        worker_detect_quorum_queues=False,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        broker_connection_retry=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_channel_error_retry=True,
        broker_transport_options={
            "priority_steps": [0],
            "visibility_timeout": 86_400,  # not for our workers, whose transport mirrors no message
            "socket_timeout": 5.0,
            "socket_connect_timeout": 2.0,
            "socket_keepalive": True,
            "health_check_interval": 10,
        },
        beat_schedule={
            # A run that waited a whole period is not worth doing twice.
            RETENTION_TASK: {"task": RETENTION_TASK, "schedule": 3_600.0, "options": {"expires": 3_600.0}}
        },
        enable_utc=True,
        timezone="UTC",
    )
    for name in (LANE_TASK, RETENTION_TASK):
        app.task(name=name)(_refuse)
    app.steps["worker"].add(PoolGuard)
    return app


def queue(name: str) -> Queue:
    """A queue reached by its name alone: no binding to look up, and none to lose when Redis is emptied."""
    return Queue(name, Exchange(""), routing_key=name)  # type: ignore[no-untyped-call]  # kombu has no types


def lane_queues(lanes: Sequence[str], model: str | None = None) -> list[str]:
    """The queues of these lanes, every band; those of a further model where one is named."""
    return list(dict.fromkeys(queue_name(lane, priority, model) for lane in lanes for priority in range(10)))


def all_queues(settings: Settings) -> list[str]:
    """The queues of every lane and model."""
    return [
        name
        for model in settings.served
        for name in lane_queues(list(settings.lanes_of(model)), settings.further(model))
    ]


def _refuse(*_args: object) -> None:
    raise RuntimeError("this task is carried out by Trilane's own pool alone: start `trilane worker`")


# --- the announcer ----------------------------------------------------------------------------------


def encode_message(queue: str, job_ids: Sequence[str], message_id: str, origin: str) -> bytes:
    """A `lane.run` message as kombu writes it on Redis: Celery's task protocol 2, JSON.

    It is built by hand since Celery's own publishing costs several times the Redis call itself; a test
    holds it equal to what Celery and kombu write.
    """
    shown = list(job_ids[:_IDS_SHOWN])
    more = f" and {len(job_ids) - len(shown)} more" if len(job_ids) > len(shown) else ""
    body = [[list(job_ids)], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]
    message = {
        "body": base64.b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {
            "lang": "py",
            "task": LANE_TASK,
            "id": message_id,
            "shadow": None,
            "eta": None,
            "expires": None,
            "group": None,
            "group_index": None,
            "retries": 0,
            "timelimit": [None, None],
            "root_id": message_id,
            "parent_id": None,
            "argsrepr": f"[{shown}]{more}",
            "kwargsrepr": "{}",
            "origin": origin,
            "ignore_result": True,
            "replaced_task_nesting": 0,
            "stamped_headers": None,
            "stamps": {},
        },
        "properties": {
            "correlation_id": message_id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": message_id,
        },
    }
    return json.dumps(message).encode()


class _Breaker:
    """Spares callers the wait for a server that is away: one try in each pause, all others fail at once."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._open = False
        self._next_try = 0.0

    def allows(self) -> bool:
        """Whether the caller may try now."""
        if not self._open:
            return True
        with self._lock:
            now = time.monotonic()
            if self._open and now < self._next_try:
                return False
            self._next_try = now + self._pause_s
            return True

    def failed(self) -> bool:
        """Note a failure; True if it is the first since the last success."""
        with self._lock:
            first, self._open = not self._open, True
            self._next_try = time.monotonic() + self._pause_s
            return first

    def succeeded(self) -> None:
        """Note a success."""
        self._open = False


class Announcer:
    """Puts job ids on lanes' queues and counts what waits there; safe for threads and across a fork."""

    def __init__(self, settings: Settings, *, connect_timeout_s: float = 0.5, pause_s: float = 1.5) -> None:
        """Connect to nothing yet. Raises `ValueError` where the Redis address is malformed."""
        self._redis = redis.Redis.from_url(
            settings.redis_url,
            socket_connect_timeout=connect_timeout_s,
            socket_timeout=max(connect_timeout_s, 1.0),
            retry=Retry(NoBackoff(), 0),
        )
        self._origin = anon_nodename()
        self._breaker = _Breaker(pause_s)

    def announce(self, queue: str, job_ids: Sequence[str], *, first: bool = False) -> bool:
        """Send one message with these ids; False, soon, where Redis did not take it.

        `first` puts it before all others, for what had its turn already: so a queue stays in order, and
        an announcement that later ones overtook is a lost one.
        """
        message = self._message(queue, job_ids)
        push = self._redis.rpush if first else self._redis.lpush
        return self._attempt(lambda: push(queue, message)) is not None

    def announce_many(self, announcements: Iterable[tuple[str, Sequence[str]]]) -> bool:
        """Send many messages in few round trips; False where any may be missing (some may be there)."""
        messages = [(queue, self._message(queue, job_ids)) for queue, job_ids in announcements]
        batches = [messages[i : i + _PIPELINE_MESSAGES] for i in range(0, len(messages), _PIPELINE_MESSAGES)]
        return all(self._attempt(functools.partial(self._push, batch)) for batch in batches)

    def publish(self, messages: Iterable[tuple[str, str]]) -> bool:
        """Send hints to who listens on their channels now; False, soon, where Redis did not take them."""
        return self._attempt(functools.partial(self._publish, list(messages))) is not None

    def depths(self, queues: Sequence[str]) -> dict[str, int] | None:
        """The messages that wait in each of these queues now; None where Redis is away."""
        return self._attempt(lambda: self._count(queues))

    def close(self) -> None:
        """Close the connections; the announcer opens new ones if it is used again."""
        self._redis.close()

    def _message(self, queue: str, job_ids: Sequence[str]) -> bytes:
        return encode_message(queue, job_ids, str(uuid.uuid4()), self._origin)

    def _push(self, messages: Sequence[tuple[str, bytes]]) -> bool:
        with self._redis.pipeline(transaction=False) as pipe:
            for name, message in messages:
                pipe.lpush(name, message)
            pipe.execute()
        return True

    def _publish(self, messages: Sequence[tuple[str, str]]) -> bool:
        with self._redis.pipeline(transaction=False) as pipe:
            for channel, message in messages:
                pipe.publish(channel, message)
            pipe.execute()
        return True

    def _count(self, queues: Sequence[str]) -> dict[str, int]:
        with self._redis.pipeline(transaction=False) as pipe:
            for name in queues:
                pipe.llen(name)
            return dict(zip(queues, pipe.execute(), strict=True))

    def _attempt(self, command: Callable[[], T]) -> T | None:
        if not self._breaker.allows():
            return None
        try:
            result = command()
        except redis.RedisError as error:
            if self._breaker.failed():
                log.warning("broker.unreachable", error=type(error).__name__)
            return None
        self._breaker.succeeded()
        return result
