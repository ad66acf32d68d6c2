"""Replays arrivals through Trilane's own queue order, places, gates and attempts, in one process.

What is left out: Postgres, Redis and Celery, whose time `trilane bench pipeline` measures. So it runs in
virtual time with the simulated engine, and in real time with a real one.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice

from jobs.domain import requests
from jobs.domain.jobs import Claim, new_id, prefix_of
from jobs.domain.lanes import DEFAULT_PRIORITY, LanePolicy, parse_queue, queue_name
from jobs.domain.outcomes import Cancelled, Completed, Outcome, Rejected, Retryable, Usage
from trilane.bench.lanes_load import Arrival
from trilane.bench.lanes_prompts import Prompts
from workers.admission import Admission
from workers.attempt import Attempt
from workers.engines.seam import Engine
from workers.lane_order import LaneOrder

BACKLOG = 32  # requests of a backlog that wait or run at any time; more than any limit


@dataclass(slots=True)
class Served:
    """One request and its times, in seconds of the replay; `first_at` is its first token's."""

    arrival: Arrival
    number: int
    of_backlog: bool = False
    claimed_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
    outcome: Outcome | None = None

    @property
    def usage(self) -> Usage:
        """Its tokens, as the engine counted them."""
        return self.outcome.usage if self.outcome else Usage()

    @property
    def completed(self) -> bool:
        """Whether it was answered."""
        return isinstance(self.outcome, Completed)

    @property
    def failure(self) -> tuple[str, str] | None:
        """The code and the message of what it got in the place of an answer."""
        match self.outcome:
            case Rejected(code, message) | Retryable(code, message):
                return code, message
            case Cancelled(reason):
                return reason.value, "the attempt was closed"
        return None

    @property
    def ttft_s(self) -> float:
        """From the arrival to the first token."""
        return self.first_at - self.arrival.at_s

    @property
    def total_s(self) -> float:
        """From the arrival to the last token."""
        return self.ended_at - self.arrival.at_s


class Worker:
    """A worker as a lane service puts it together: one engine, and its lanes' places, gates and order."""

    def __init__(self, lanes: Mapping[str, LanePolicy], engine: Engine) -> None:
        self.lanes, self.engine = lanes, engine
        admission = Admission(lanes)
        self.slots, self.gates = admission.slots, admission.gates
        self.order = LaneOrder(list(lanes), self.slots.free)
        self.queues = [queue_name(lane, DEFAULT_PRIORITY) for lane in lanes]


@dataclass(frozen=True, slots=True)
class _Sink:
    """Takes an attempt's stream and notes its first token."""

    served: Served
    now: Callable[[], float]

    def text(self, piece: str, *, last: bool = False) -> None:
        if not self.served.first_at:
            self.served.first_at = self.now()


class Replay:
    """One run over these workers; `lane_of` routes a request to the lane of one of them."""

    def __init__(
        self,
        workers: Sequence[Worker],
        lane_of: Callable[[Arrival], str],
        numbers: Iterator[int],
        prompts: Prompts,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """`numbers` tell the prompts apart, over all runs on the same engines; `watch` hears of each end."""
        self._lane_of, self._numbers, self._prompts, self._watch = lane_of, numbers, prompts, watch
        self._polling = deque(workers)
        self._queues: dict[str, deque[Served]] = {q: deque() for worker in workers for q in worker.queues}
        self._backlog: Iterator[Arrival] = iter(())
        self._served: list[Served] = []
        self._due = 0  # how many have not ended, the backlog's apart
        self._tasks: set[asyncio.Task[None]] = set()
        self._began_at = asyncio.get_running_loop().time()

    async def run(
        self, arrivals: Sequence[Arrival], *, backlog: Sequence[Arrival] = (), at_least_s: float = 0.0
    ) -> list[Served]:
        """Let them arrive, wait until all have ended, and return them in the order of their arrival.

        The `backlog` is work that never ends: a request of it that was answered is followed by another.
        Those that ended by then come back too. The run takes `at_least_s` seconds.
        """
        self._due = len(arrivals)
        self._backlog = cycle(backlog)
        for arrival in islice(self._backlog, BACKLOG):
            self._arrive(arrival, of_backlog=True)
        for arrival in arrivals:
            await self._sleep_until(arrival.at_s)
            self._arrive(arrival)
        while self._due:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        await self._sleep_until(at_least_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return [served for served in self._served if served.outcome]

    async def _sleep_until(self, at_s: float) -> None:
        if at_s > self._now():
            await asyncio.sleep(at_s - self._now())

    def _now(self) -> float:
        return asyncio.get_running_loop().time() - self._began_at

    def _arrive(self, arrival: Arrival, *, of_backlog: bool = False) -> None:
        served = Served(replace(arrival, at_s=self._now()), next(self._numbers), of_backlog)
        self._served.append(served)
        self._queues[queue_name(self._lane_of(arrival), DEFAULT_PRIORITY)].append(served)
        self._poll()

    def _poll(self) -> None:
        """Let workers take what they can; as in Redis, whoever has waited longest gets the next message."""
        idle = 0
        while idle < len(self._polling):
            idle = 0 if self._take(self._polling[0]) else idle + 1
            self._polling.rotate(-1)

    def _take(self, worker: Worker) -> bool:
        for queue in worker.order.order(worker.queues):
            lane, _, _ = parse_queue(queue)
            if self._queues[queue] and worker.slots.take(lane, worker.order.room(queue, 1)):
                worker.order.admitted(queue, 1)
                task = asyncio.create_task(self._serve(worker, lane, self._queues[queue].popleft()))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                return True
        return False

    async def _serve(self, worker: Worker, lane: str, served: Served) -> None:
        served.claimed_at = self._now()
        claim = self._claim(lane, served)
        attempt = Attempt(claim, worker.lanes[lane], 0.0, _Sink(served, self._now))
        served.outcome = await attempt.run(worker.gates[lane], worker.engine)
        served.ended_at = self._now()
        worker.slots.give(lane)
        if not served.of_backlog:
            self._due -= 1
            self._watch()
        elif served.completed:  # failures may take no time: there would be no end of them
            self._arrive(next(self._backlog), of_backlog=True)
        self._poll()

    def _claim(self, lane: str, served: Served) -> Claim:
        arrival = served.arrival
        messages, sampling = self._prompts.request(
            served.number, arrival.prompt_tokens, arrival.output_tokens
        )
        waited_ms = (served.claimed_at - arrival.at_s) * 1_000
        return Claim(
            id=new_id(),
            attempt=1,
            failures=0,
            max_attempts=1,
            lane=lane,
            priority=DEFAULT_PRIORITY,
            model="",
            request=requests.to_json(messages, sampling),
            prompt_tokens=arrival.prompt_tokens,
            prefix=prefix_of(messages[0].content),
            queue_ms=waited_ms,
            age_ms=waited_ms,
            deadline_in_s=float("inf"),
        )
