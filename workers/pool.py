"""The pool: a bridge from Celery's consumer thread to the one asyncio loop that carries out the jobs.

Celery brings messages and takes acknowledgements, in its own thread and event loop (the hub). Nothing of
Celery's task machinery runs a job: the pool hands a message's arguments to a `Service`, and the hub
acknowledges when the service says so.
"""

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future, wait
from typing import Any, ClassVar, Protocol, TypeVar

import structlog
import uvloop
from celery.concurrency.base import BasePool
from celery.platforms import EX_FAILURE, EX_OK
from celery.worker import state

from jobs.broker import LANE_TASK

DRAIN_MARGIN_S = 3.0  # what a drain may take beyond its grace before the worker leaves all the same
_STOP_TIMEOUT_S = 5.0
_GOODBYE_S = 3.0
_SIGNAL_DELAY_S = 0.2

log = structlog.get_logger()
T = TypeVar("T")


class Service(Protocol):
    """What a pool works for. Coroutines run in the pool's loop, what else there is in Celery's thread."""

    capacity: int  # jobs at once, and so the messages that may be unacknowledged at once
    wake: Callable[[], None]  # set by the pool before `start`: to call, from any thread, when a lane that had
    # no free slot got one, so that its queues are polled at once

    async def start(self) -> None:
        """Load and warm up; no message is taken before this returns. An exception ends the process."""
        ...

    def offer(self, queue: str, job_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Take a message's ids without blocking; call `done` once, from any thread, to acknowledge it."""
        ...

    def order(self, queues: Sequence[str]) -> list[str]:
        """The queues to poll now, the first first; none where no slot is free."""
        ...

    def more(self, queue: str) -> int:
        """How many messages to take at once behind the one that `offer` just got from `queue`."""
        ...

    async def handle(self, task: str, args: list[Any]) -> None:
        """Carry out a task that is not `lane.run`."""
        ...

    async def drain(self, grace_s: float) -> None:
        """Take nothing more, let jobs end within the grace, give the rest back.

        It may be called a second time, with no grace, while the first call still waits.
        """
        ...

    async def stop(self) -> None:
        """Free everything."""
        ...


class LoopThread:
    """One asyncio loop in one thread."""

    def __init__(self, on_death: Callable[[], None]) -> None:
        """Start the loop; `on_death` is called in its thread if it ends before `stop`."""
        self._on_death = on_death
        self._loop = uvloop.new_event_loop()
        self._stopping = False
        # A daemon, since an engine that hangs must not keep the process.
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the loop still runs."""
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End the loop and wait for its thread, within bounds."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            if not self._stopping:
                self._on_death()


class LanePool(BasePool):  # type: ignore[misc]  # Celery ships no types
    """Celery's side of a `Service`."""

    service: ClassVar[Service | None] = None
    grace_s: ClassVar[float] = 0.0
    task_join_will_block = False
    limit: int

    @classmethod
    def serving(cls, service: Service, grace_s: float) -> type["LanePool"]:
        """The pool class to start a worker with."""
        return type(cls.__name__, (cls,), {"service": service, "grace_s": grace_s})

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take Celery's options; nothing runs before `start`."""
        super().__init__(*args, **options)
        if self.service is None:
            raise TypeError("LanePool has no service: use LanePool.serving")
        self._work: Service = self.service
        self._work.wake = self.wake
        self._channel: Any = None
        self._thread: LoopThread | None = None
        self._starting: Future[None] | None = None
        self._drained = False
        self._ended: deque[tuple[Callable[[Any], None], float]] = deque()
        self._wake_sent = self._slot_freed = False
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    # --- Celery calls these, in the consumer's thread

    def on_start(self) -> None:
        """Start the loop and the service; raises `SystemExit` where the service does not start."""
        state.maybe_shutdown()
        self._thread = LoopThread(self._died)
        self._starting = self._thread.submit(self._work.start())
        if state.should_stop is not None:  # a signal came when there was nothing to cancel yet
            self._starting.cancel()
        try:
            self._wait_for(self._starting)
            self._starting.result()
        except CancelledError:
            _exit_soon(EX_OK)
            raise SystemExit(EX_OK) from None
        except Exception as error:  # whatever an engine raises, the process must end and say why
            log.error("worker.start_failed", error=str(error), exc_info=error)
            _exit_soon(EX_FAILURE)
            raise SystemExit(EX_FAILURE) from error

    def register_with_event_loop(self, hub: Any) -> None:
        """Let `done` and `wake` reach the hub; called anew after each reconnect."""
        hub.add_reader(self._reader, self._on_wake)

    def attach(self, channel: Any) -> None:
        """Take the channel that polls; called anew after each reconnect."""
        self._channel = channel

    def on_apply(self, _target: Any, args: Sequence[Any], _kwargs: Any, **options: Any) -> None:
        """Hand one message to the service. Celery's own body of the task never runs."""
        task, _message_id, request = args[:3]
        started, acknowledge = time.monotonic(), options["callback"]
        options["accept_callback"](os.getpid(), started)

        def done() -> None:
            self._ended.append((acknowledge, time.monotonic() - started))
            self._notify()

        given, queue = list(request["args"]), request["delivery_info"]["routing_key"]
        if task != LANE_TASK:
            self._submit(self._handle(task, given, done))
        elif _are_ids(given):
            self._work.offer(queue, given[0], done)
        else:
            log.warning("message.malformed", queue=queue)
            done()

    def grow(self, n: int = 1) -> None:
        """Raise the number of messages that may be unacknowledged; the service's slots stay its own."""
        self.limit += n

    def shrink(self, n: int = 1) -> None:
        """The inverse of `grow`; one message stays possible."""
        self.limit = max(self.limit - n, 1)

    def on_close(self) -> None:
        """Drain, if nothing did before, and free all of ours: what follows is Celery's goodbye to Redis."""
        if self._thread and self._thread.alive:
            if not self._drained:
                self._submit(self._drain(self.grace_s)).result()
            try:
                self._submit(self._work.stop()).result(_STOP_TIMEOUT_S)
            except Exception as error:  # the process ends anyway
                log.error("worker.stop_failed", error=repr(error), exc_info=error)
            self._thread.stop()
        self._acknowledge()
        _exit_soon(EX_FAILURE if state.should_stop else EX_OK)

    # --- these are safe from any thread

    def wake(self) -> None:
        """Poll again at once: a lane got a free slot that had none."""
        self._slot_freed = True
        self._notify()

    def drain(self, grace_s: float) -> None:
        """Let the service drain, then stop the worker; safe in a signal handler too."""
        if self._starting and self._starting.done():
            self._submit(self._drain(grace_s))
        else:
            state.should_stop = EX_OK
            if self._starting:
                self._starting.cancel()

    # --- inside

    @staticmethod
    def _wait_for(starting: Future[None]) -> None:
        """Wait in short sleeps: a signal that comes in the moment before one takes effect only after it.

        Python runs a handler when its main thread next does something, and a cancelling that interrupts
        the wait just before it sleeps finds nobody to notify.
        """
        while not starting.done():
            wait([starting], timeout=_SIGNAL_DELAY_S)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        if self._thread is None:
            raise RuntimeError("the pool was not started")
        return self._thread.submit(work)

    async def _handle(self, task: str, args: list[Any], done: Callable[[], None]) -> None:
        try:
            await self._work.handle(task, args)
        except Exception as error:  # the edge of a control task: beat sends the next one
            log.error("task.failed", task=task, error=str(error), exc_info=error)
        finally:
            done()

    async def _drain(self, grace_s: float) -> None:
        log.info("worker.draining", grace_s=grace_s)
        try:
            async with asyncio.timeout(grace_s + DRAIN_MARGIN_S):
                await self._work.drain(grace_s)
        except Exception as error:  # leases give back what a failed drain leaves
            log.error("worker.drain_failed", error=repr(error), exc_info=error)
        self._drained = True
        if state.should_stop is None:
            state.should_stop = EX_OK
        self._notify()

    def _died(self) -> None:
        log.error("worker.loop_died")
        state.should_stop = EX_FAILURE
        self._notify()

    def _notify(self) -> None:
        if not self._wake_sent:
            self._wake_sent = True
            os.write(self._writer, b"\0")

    def _on_wake(self) -> None:
        os.read(self._reader, 64)
        # The flag falls before the work is looked at, so that what comes in between wakes the hub again.
        self._wake_sent = False
        self._acknowledge()
        if self._slot_freed:
            self._slot_freed = False
            # The hub polls whenever it wakes, but not while a poll is outstanding (up to 1 s).
            if self._channel.polls_some and not self._channel.end_poll():
                self.wake()

    def _acknowledge(self) -> None:
        while self._ended:
            acknowledge, runtime_s = self._ended.popleft()
            acknowledge((False, None, runtime_s))


def _exit_soon(status: int) -> None:
    """End the process in a while, where Redis hangs and Celery's goodbye with it, or an engine's thread."""
    timer = threading.Timer(_GOODBYE_S, os._exit, (status,))
    timer.daemon = True
    timer.start()


def _are_ids(args: list[Any]) -> bool:
    return len(args) == 1 and isinstance(args[0], list) and all(isinstance(job_id, str) for job_id in args[0])
