"""What a worker does with the jobs that Celery brings: claim, run, record, renew the leases, hand back."""

import asyncio
import signal
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

import structlog

from jobs.broker import Announcer
from jobs.domain.jobs import Claim, Move, Status
from jobs.domain.lanes import LanePolicy, parse_queue
from jobs.domain.outcomes import CloseReason
from jobs.settings import Settings
from jobs.store import sweeps
from jobs.store.engine import open_engine
from jobs.store.workers import WorkerState
from jobs.tokenizer import TokenCounter
from workers import card_lock, pinning
from workers.admission import Admission
from workers.answering import Answering
from workers.attempt import Attempt, Identity
from workers.engine_watch import EngineWatch
from workers.engines.seam import Engine
from workers.gpu_figures import GpuFigures
from workers.lane_order import LaneOrder
from workers.leases import Leases
from workers.live import LiveStream, Publisher, listen_for_cancels
from workers.outage import OutageTolerated
from workers.presence import Presence
from workers.record import Recorder
from workers.warm_up import warm_up

DB_THREADS = 4  # claims, records, renewals and reports, each at most one at a time

log = structlog.get_logger()


class LaneService:
    """The pool's service for lanes. `order`, `offer` and `more` belong to Celery's thread, else the loop."""

    def __init__(
        self,
        settings: Settings,
        lanes: Sequence[str],
        engine: Engine,
        name: str,
        watch: EngineWatch | None = None,
    ) -> None:
        """Drain `lanes`, given in rank order, with one engine; `name` tells this worker from all others."""
        self._policies: Mapping[str, LanePolicy] = {lane: settings.lanes[lane] for lane in lanes}
        self._settings, self._engine, self._name = settings, engine, name
        self._cards = GpuFigures(pinning.pinned())
        self._admission = Admission(self._policies, self._cards.read)
        self._slots, self._gates = self._admission.slots, self._admission.gates
        self.capacity = self._admission.total
        self._watch = watch or EngineWatch(engine)
        self.failed = False  # whether it ended by itself
        self.wake: Callable[[], None] = lambda: None
        self._order = LaneOrder(list(lanes), self._slots.free)
        counter = TokenCounter.of(settings.engine, engine.name)
        self._answering = {
            lane: Answering(engine, policy, counter) for lane, policy in self._policies.items()
        }
        self._warm_up: Mapping[str, Any] = {}
        # Messages on their way to the loop, and whether it knows.
        self._offered: deque[tuple[str, Sequence[str], Sequence[str], Callable[[], None]]] = deque()
        self._told = False
        self._message_size = 1
        self._attempts: dict[tuple[uuid.UUID, int], Attempt] = {}
        self._work: set[asyncio.Task[None]] = set()
        self._loops: set[asyncio.Task[None]] = set()

    # --- Celery's thread ---------------------------------------------------------------------------

    def order(self, queues: Sequence[str]) -> list[str]:
        """The queues to poll now: those of lanes with a free place, none while draining."""
        return self._order.order(queues) if self._taking else []

    def offer(self, queue: str, job_ids: Sequence[str], done: Callable[[], None]) -> None:
        """Take the places for what can start; the rest is announced again for whoever can start it."""
        lane, _, _ = parse_queue(queue)
        taken = 0
        if self._taking:
            taken = self._slots.take(lane, self._order.room(queue, len(job_ids)))
        if taken:
            self._order.admitted(queue, taken)
        self._message_size = max(len(job_ids), 1)
        self._offered.append((queue, job_ids[:taken], job_ids[taken:], done))
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._accept)

    def more(self, queue: str) -> int:
        """As many messages like the last one as can start now and pass over nobody for too long."""
        if not self._taking:
            return 0
        lane, _, _ = parse_queue(queue)
        return min(self._order.more, self._slots.free(lane)) // self._message_size

    @property
    def _taking(self) -> bool:
        return self._presence.state is not WorkerState.DRAINING and not self._engine.dead

    # --- the loop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Load the engine, with the worker's state told at each step; then take jobs."""
        self._loop = asyncio.get_running_loop()
        self._db = open_engine(self._settings.database_url, pool_size=DB_THREADS)
        self._executor = ThreadPoolExecutor(DB_THREADS, thread_name_prefix="db")
        self._announcer = Announcer(self._settings)
        self._publisher = Publisher(self._settings.redis_url)
        self._recorder = Recorder(self._db, self._executor)
        self._leases = Leases(
            self._db,
            self._executor,
            self._name,
            self._settings.lease.lease_s,
            leaving=lambda: self._presence.state is WorkerState.DRAINING,
        )
        lanes = list(self._policies)
        self._presence = Presence(self._db, self._executor, self._name, lanes, self._engine, self._figures)
        self._spawn(self._presence.run(), self._loops)
        await self._start_engine()
        self._identity = Identity(self._name, self._engine.name, self._engine.precision, self._engine.device)
        for work in (
            self._publisher.run(),
            self._leases.keep(lambda: self._attempts, self._lost),
            self._admission.run(self._engine, self.wake),
            self._end_in_time(),
            listen_for_cancels(self._settings.redis_url, self._cancel),
        ):
            self._spawn(work, self._loops)
        self._presence.tell(WorkerState.READY)
        log.info("worker.ready", worker=self._name, lanes=lanes, engine=self._engine.name)

    async def _start_engine(self) -> None:
        async with card_lock.starting(pinning.pinned()):
            began = time.monotonic()
            await self._engine.start()
            cold_start_s = time.monotonic() - began
        log.info("worker.started", worker=self._name, engine=self._engine.name, cold_start_s=cold_start_s)

        def told(figures: Mapping[str, Any]) -> None:
            self._warm_up = {"cold_start_s": cold_start_s, **figures}
            self._presence.tell(WorkerState.WARMING)

        told({})
        if self._settings.engine.warms_up(self._engine.name):
            await warm_up(self._engine, list(self._policies.values()), told)

    async def handle(self, task: str, args: list[Any]) -> None:
        """Lane workers carry out jobs only."""
        raise ValueError(f"a lane worker does not carry out {task}")

    async def drain(self, grace_s: float) -> None:
        """Take nothing more; what does not end within the grace goes back to its queue, uncharged."""
        self._presence.tell(WorkerState.DRAINING)
        if self._work:
            await asyncio.wait(self._work, timeout=grace_s)
        for attempt in list(self._attempts.values()):
            attempt.close(CloseReason.SHUTDOWN)
        if self._work:
            await asyncio.wait(self._work)

    async def stop(self) -> None:
        """Leave the list of workers and free the engine."""
        loops = list(self._loops)
        for task in loops:
            task.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        await self._publisher.close()
        await self._engine.stop()
        await self._presence.leave()
        self._executor.shutdown(wait=False)
        self._db.dispose()

    def _accept(self) -> None:
        # The flag falls before the messages are looked at, so that one that comes in between is told of.
        self._told = False
        while self._offered:
            self._spawn(self._take(*self._offered.popleft()), self._work)

    async def _take(
        self, queue: str, taken: Sequence[str], refused: Sequence[str], done: Callable[[], None]
    ) -> None:
        """See every id of a message claimed, refused or announced again; then the message may go."""
        if refused:
            await self._announce(queue, refused)
        lane, _, _ = parse_queue(queue)
        began = time.monotonic()
        answers = await asyncio.gather(*map(self._leases.claim, taken), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, Claim):
                self._begin(answer, queue, time.monotonic() - began)
                continue
            self._free(lane)
            if answer is not None:  # the job still waits; the sweeper has it announced again
                log.error("claim.failed", queue=queue, exc_info=answer)
        done()

    def _begin(self, claim: Claim, queue: str, claim_s: float) -> None:
        live = self._publisher.open(str(claim.id), claim.attempt)
        attempt = Attempt(claim, self._policies[claim.lane], claim_s, live)
        self._attempts[attempt.key] = attempt
        self._spawn(self._run(attempt, queue, live), self._work)
        if self._presence.state is WorkerState.DRAINING:
            self._loop.call_soon(attempt.close, CloseReason.SHUTDOWN)

    async def _run(self, attempt: Attempt, queue: str, live: LiveStream) -> None:
        claim = attempt.claim
        try:
            try:
                outcome = await attempt.run(self._gates[claim.lane], self._answering[claim.lane])
            finally:
                self._free(claim.lane)
            ending = attempt.ending(outcome, self._identity, self._settings.lease)
            self._admission.ended(ending.latency)
            status = await self._recorder.record(ending)
        finally:
            del self._attempts[attempt.key]
        log.info(
            "attempt.ended",
            job_id=str(claim.id),
            lane=claim.lane,
            attempt=claim.attempt,
            outcome=ending.latency.outcome,
            status=status,
        )
        if status is Status.QUEUED:
            live.status(status)
            if ending.move is Move.HAND_BACK:
                await self._announce(queue, [str(claim.id)])
        else:
            live.ended()

    def _free(self, lane: str) -> None:
        if self._slots.give(lane):
            self._loop.call_soon(self.wake)  # after this round, so that one poll sees all that it frees

    async def _announce(self, queue: str, job_ids: Sequence[str]) -> None:
        """Put jobs back on their queue; where Redis is away, the feeder does it when it is back."""
        if await self._in_thread(partial(self._announcer.announce, queue, job_ids, first=True)):
            return
        with OutageTolerated("announce.both_away", jobs=len(job_ids)):  # then the sweeper finds them
            await self._in_thread(self._unannounce, [uuid.UUID(job_id) for job_id in job_ids])

    def _unannounce(self, ids: list[uuid.UUID]) -> None:
        with self._db.begin() as connection:
            sweeps.mark_unannounced(connection, ids)

    def _cancel(self, job_id: str) -> None:
        for (held_id, _), attempt in self._attempts.items():
            if str(held_id) == job_id:
                attempt.close(CloseReason.CANCEL)

    def _lost(self, key: tuple[uuid.UUID, int], reason: CloseReason) -> None:
        if key in self._attempts:
            self._attempts[key].close(reason)

    async def _end_in_time(self) -> None:
        """End the process once its engine asks for it: jobs go back, and its supervisor starts it anew."""
        await self._watch.should_end(lambda: not self._attempts)
        self.failed = True
        signal.raise_signal(signal.SIGTERM)

    def _figures(self) -> dict[str, Any]:
        """What the worker's row shows: the engine's state, the lanes' admission, the warm-up, the cards."""
        return {
            "engine": asdict(self._engine.stats()),
            "lanes": self._admission.figures(),
            "warm_up": self._warm_up,
            "cards": self._cards.read(),
        }

    async def _in_thread(self, call: Callable[..., Any], *args: Any) -> Any:
        return await self._loop.run_in_executor(self._executor, call, *args)

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(_must_not_fail)


def _must_not_fail(task: asyncio.Task[None]) -> None:
    """End the worker on a bug in its own work: its leases and its supervisor see to the rest."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("worker.failed", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
