"""A lane's limit while its load steps up, moved by the controller and fixed; prints one JSON object.

Eight workers, each with its own admission and its own simulated card, take jobs from one queue in virtual
time. The cards follow the measured curve (`workers.engines.sim_curves`); the places, the gate and the
controller are those of a real worker.
"""

import argparse
import asyncio
import itertools
import json
import logging
import random
import statistics
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import structlog

from jobs.domain.jobs import Claim, new_id
from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import Completed
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.domain.tokens import estimate
from trilane.bench import virtual_time
from workers.admission import Admission
from workers.engines.sim import SimEngine
from workers.engines.sim_curves import A100_FP16, CARDS, REQUEST_TOKENS

OBJECTIVE_S = 1.3
PHASES = ((20.0, 9.0), (100.0, 45.0))  # seconds, jobs a second
SETTLED_AFTER_S = 15.0  # "the first seconds" of a step
SHOWN_EVERY_S = 5

ADAPTIVE = replace(LANES["warm"], objective_ms=round(OBJECTIVE_S * 1_000))
_OVERHEAD = estimate([Message(Role.USER, "")])
REQUEST = GenerationRequest(
    "job",
    (Message(Role.USER, "four" * (REQUEST_TOKENS - _OVERHEAD)),),
    Sampling(max_tokens=REQUEST_TOKENS),
)


def adaptive(start: int) -> LanePolicy:
    """The lane with the controller, which begins at `start`."""
    return replace(ADAPTIVE, limit=start)


def fixed(limit: int) -> LanePolicy:
    """The lane without the controller."""
    return replace(ADAPTIVE, limit=limit, limit_min=None, limit_max=None, window_max_ms=None)


POLICIES = {
    **{f"adaptive from {start}": adaptive(start) for start in (8, 4, 16)},
    **{f"fixed at {limit}": fixed(limit) for limit in (4, 8, 16)},
}


class Answer(NamedTuple):
    """When a job was asked for, and how many seconds it then took."""

    asked_at_s: float
    seconds: float


@dataclass
class Run:
    """What came of one run. `limits` and `windows_ms` hold each worker's, second by second."""

    answers: list[Answer] = field(default_factory=list)
    limits: list[list[int]] = field(default_factory=list)
    windows_ms: list[list[int]] = field(default_factory=list)
    moves: Counter[str] = field(default_factory=Counter)

    def seconds(self, from_s: float, until_s: float) -> list[float]:
        """How long the jobs took that were asked for in this time."""
        return [answer.seconds for answer in self.answers if from_s <= answer.asked_at_s < until_s]


class _Queue:
    """Redis as workers see it: jobs in their order, one a poll, and of those that poll, the first first."""

    def __init__(self) -> None:
        self._jobs: deque[float] = deque()
        self._polling: deque[_Worker] = deque()

    def put(self, asked_at_s: float) -> None:
        self._jobs.append(asked_at_s)
        self._deliver()

    def poll(self, worker: "_Worker") -> None:
        if worker not in self._polling:
            self._polling.append(worker)
        self._deliver()

    def _deliver(self) -> None:
        while self._jobs and self._polling:
            worker = self._polling.popleft()
            if worker.take(self._jobs[0]):
                self._jobs.popleft()
                if worker.has_place:
                    self._polling.append(worker)


class _Worker:
    """What a lane worker does with a job, without the database: its place, the gate, the engine."""

    def __init__(self, number: int, policy: LanePolicy, queue: _Queue, answers: list[Answer]) -> None:
        self._loop = asyncio.get_running_loop()
        self.admission = Admission({policy.name: policy})
        profile = replace(A100_FP16, slots=self.admission.total, seed=number, stream_interval=REQUEST_TOKENS)
        self._engine = SimEngine("sim", profile, now=self._loop.time)
        self._lane, self._queue, self._answers = policy.name, queue, answers
        self._work: set[asyncio.Task[None]] = set()
        self._leaving = False

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Take jobs; those that run at the end are left."""
        await self._engine.start()
        moving = self._loop.create_task(self.admission.run(self._engine, self._poll))
        self._poll()
        yield
        self._leaving = True
        left = [moving, *self._work]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await self._engine.stop()

    @property
    def has_place(self) -> bool:
        return not self._leaving and self.admission.slots.free(self._lane) > 0

    def _poll(self) -> None:
        if self.has_place:
            self._queue.poll(self)

    def take(self, asked_at_s: float) -> bool:
        """Begin the job, where there is still a place for it."""
        if not (self.has_place and self.admission.slots.take(self._lane, 1)):
            return False
        task = self._loop.create_task(self._run(asked_at_s))
        self._work.add(task)
        task.add_done_callback(self._work.discard)
        return True

    async def _run(self, asked_at_s: float) -> None:
        claimed_at_s = self._loop.time()
        queue_ms = (claimed_at_s - asked_at_s) * 1_000
        claim = Claim(new_id(), 1, 0, 3, self._lane, 5, "sim", {}, REQUEST_TOKENS, 0, queue_ms, queue_ms, 600)
        gate = self.admission.gates[self._lane]
        await gate.enter(claim)
        admission_ms = (self._loop.time() - claimed_at_s) * 1_000
        try:
            outcome = [chunk.outcome async for chunk in self._engine.generate(REQUEST)][-1]
        finally:
            gate.leave()
            if self.admission.slots.give(self._lane):
                self._loop.call_soon(self._poll)
        if not isinstance(outcome, Completed):
            raise TypeError(f"the engine answered {outcome}")
        answer = Answer(asked_at_s, self._loop.time() - asked_at_s)
        self._answers.append(answer)
        self.admission.ended(
            LatencyRecord(
                "succeeded",
                self._lane,
                queue_ms=queue_ms,
                admission_ms=admission_ms,
                engine_queue_ms=outcome.timings.engine_queue_ms,
                prefill_ms=outcome.timings.prefill_ms,
                decode_ms=outcome.timings.decode_ms,
                total_ms=answer.seconds * 1_000,
            )
        )


def run(policy: LanePolicy, phases: Sequence[tuple[float, float]] = PHASES, seed: int = 1) -> Run:
    """Run the phases, with jobs at random times (Poisson) and every worker's lane under this policy."""
    return virtual_time.run(_run(policy, phases, seed))


async def _run(policy: LanePolicy, phases: Sequence[tuple[float, float]], seed: int) -> Run:
    found, queue = Run(), _Queue()
    workers = [_Worker(number, policy, queue, found.answers) for number in range(CARDS)]

    def figures() -> list[dict[str, Any]]:
        return [worker.admission.figures()[policy.name] for worker in workers]

    async def watch() -> None:
        while True:
            now = figures()
            found.limits.append([each["limit"] for each in now])
            found.windows_ms.append([each["window_ms"] for each in now])
            await asyncio.sleep(1)

    async with AsyncExitStack() as stack:
        for worker in workers:
            await stack.enter_async_context(worker.working())
        watching = asyncio.create_task(watch())
        await _ask(queue, phases, random.Random(seed))  # noqa: S311 - a simulation
        watching.cancel()
    for each in figures():
        found.moves.update(each["moves"])
    return found


async def _ask(queue: _Queue, phases: Sequence[tuple[float, float]], draw: random.Random) -> None:
    loop, until_s = asyncio.get_running_loop(), 0.0
    for phase_s, per_s in phases:
        until_s += phase_s
        while (wait_s := draw.expovariate(per_s)) < until_s - loop.time():
            await asyncio.sleep(wait_s)
            queue.put(loop.time())
        await asyncio.sleep(until_s - loop.time())


def percentile(times: Sequence[float], percent: int) -> float:
    """By linear interpolation."""
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1]


def _account(runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of one policy, all runs taken together; the limits are the first run's."""
    ends = list(itertools.accumulate(phase_s for phase_s, _ in PHASES))
    phases = {}
    for (phase_s, per_s), end_s in zip(PHASES, ends, strict=True):
        begin_s = end_s - phase_s
        everything = [s for run in runs for s in run.seconds(begin_s, end_s)]
        settled = [s for run in runs for s in run.seconds(begin_s + SETTLED_AFTER_S, end_s)]
        phases[f"{per_s:g} per s"] = {
            "p99_s": round(percentile(everything, 99), 2),
            "settled": {f"p{percent}_s": round(percentile(settled, percent), 2) for percent in (50, 95, 99)}
            | {"late_share": round(sum(s > OBJECTIVE_S for s in settled) / len(settled), 4)},
            "p99_s_by_run": [
                round(percentile(run.seconds(begin_s + SETTLED_AFTER_S, end_s), 99), 2) for run in runs
            ],
        }
    every = slice(None, None, SHOWN_EVERY_S)
    return {
        "phases": phases,
        "limit_mean": [round(statistics.mean(now), 1) for now in runs[0].limits[every]],
        "limit_least": [min(now) for now in runs[0].limits[every]],
        "limit_most": [max(now) for now in runs[0].limits[every]],
        "window_mean_ms": [round(statistics.mean(now)) for now in runs[0].windows_ms[every]],
        "moves": dict(sum((run.moves for run in runs), Counter())),
    }


def _quiet() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def main() -> int:
    """Run every policy with every seed; a seed takes a good half minute of one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    # P99 differs by 0.1 s from one draw of the arrivals to another, with fixed limits too.
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="one draw of arrivals each")
    seeds = parser.parse_args().seeds
    with ProcessPoolExecutor(initializer=_quiet) as processes:
        runs = {
            name: [processes.submit(run, policy, PHASES, seed) for seed in seeds]
            for name, policy in POLICIES.items()
        }
        accounts = {name: _account([each.result() for each in of_one]) for name, of_one in runs.items()}
    report = {
        "objective_p99_s": OBJECTIVE_S,
        "phases": [{"seconds": phase_s, "jobs_per_s": per_s} for phase_s, per_s in PHASES],
        "settled_after_s": SETTLED_AFTER_S,
        "seeds": seeds,
        "limits_shown_every_s": SHOWN_EVERY_S,
        **accounts,
    }
    sys.stdout.write(json.dumps(report) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
