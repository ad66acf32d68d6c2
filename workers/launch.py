"""Starts a Celery worker in this process, rightly configured, and lets it end in time."""

import faulthandler
import itertools
import os
import signal
from collections.abc import Sequence
from typing import Any

import structlog
from celery import bootsteps
from celery.utils.nodenames import gethostname, nodename
from celery.worker import WorkController
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks
from celery.worker.state import maybe_shutdown

from jobs import broker, logging
from jobs.settings import Settings
from workers import transport
from workers.lane_order import LaneCycle
from workers.pool import DRAIN_MARGIN_S, LanePool, Service

_EVENTS_DELAY_S = 0.1
_HANG_MARGIN_S = DRAIN_MARGIN_S + 10.0

log = structlog.get_logger()


def run_worker(
    settings: Settings,
    *,
    lanes: Sequence[str],
    service: Service,
    name: str | None = None,
    model: str | None = None,
) -> int:
    """Drain these lanes' queues until a signal comes; returns the process's exit status.

    `model` names a further model, whose queues are its own. This is a process's last work, in its main
    thread: some seconds after it returned, whatever still keeps the process is cut off.
    """
    return _run(settings, broker.lane_queues(lanes, model), service, name or "-".join(lanes))


def run_control(settings: Settings, *, service: Service, name: str = "control") -> int:
    """Serve the control queue, where beat puts its tasks; otherwise as `run_worker`."""
    return _run(settings, [broker.CONTROL_QUEUE], service, name)


def _run(settings: Settings, queues: Sequence[str], service: Service, name: str) -> int:
    logging.configure()
    app = broker.create_app(settings)
    app.set_current()
    app.steps["consumer"].add(_Attach)
    app.conf.broker_transport = transport.PATH
    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "queue_order_strategy": _OrderStrategy(service),
    }
    for queue in queues:
        app.amqp.queues.add(broker.queue(queue))
    worker = WorkController(
        app=app,
        hostname=nodename(f"{name}-{os.getpid()}", gethostname()),
        pool=LanePool.serving(service, settings.lease.grace_s),
        consumer_cls=_LaneConsumer,
        concurrency=service.capacity,
        queues=list(queues),
        task_events=True,
        without_gossip=True,
        without_mingle=True,
    )
    _drain_on_signals(worker.pool, settings.lease.grace_s)
    worker.start()
    return worker.exitcode if isinstance(worker.exitcode, int) else 0


def _drain_on_signals(pool: LanePool, grace_s: float) -> None:
    """Drain at the first SIGTERM or SIGINT, at once at the second.

    Where even the loop hangs, the process ends after all, with status 1 and its threads' stacks shown.
    """
    graces = itertools.chain([grace_s], itertools.repeat(0.0))

    def leave(_number: int, _frame: object) -> None:
        # No log line here: the signal may have come in the middle of one.
        grace_s = next(graces)
        faulthandler.dump_traceback_later(grace_s + _HANG_MARGIN_S, exit=True)
        pool.drain(grace_s)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)


class _OrderStrategy:
    """Makes kombu's queue order for each channel."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def __call__(self) -> LaneCycle:
        return LaneCycle(self._service.order, self._service.more)

    def __json__(self) -> str:  # a worker's statistics show its transport options
        return "lanes"


class _Attach(bootsteps.StartStopStep):  # type: ignore[misc]  # Celery ships no types
    """Shows the pool the channel that polls, after each connect."""

    requires = (Tasks,)

    def start(self, consumer: Any) -> None:
        consumer.pool.attach(consumer.task_consumer.channel)


class _LaneConsumer(Consumer):  # type: ignore[misc]  # as above
    """Celery's consumer, sooner back after an outage, its task events in batches."""

    _events_due = False

    def ensure_connected(self, connection: Any) -> Any:
        """Connect, trying every second or two for as long as it takes."""
        return connection.ensure_connection(
            lambda error, _wait_s: log.warning("broker.unreachable", error=str(error)),
            interval_start=1,
            interval_step=1,
            interval_max=2,
            callback=maybe_shutdown,
        )

    def on_send_event_buffered(self) -> None:
        """Publish buffered events soon, not one by one: that costs as much as all else about a message."""
        if not self._events_due:
            self._events_due = True
            self.hub.call_later(_EVENTS_DELAY_S, self._publish_events)

    def _publish_events(self) -> None:
        self._events_due = False
        self._flush_events()
