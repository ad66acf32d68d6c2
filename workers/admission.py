"""How much each lane of a worker admits: its places, its gates, and what moves them."""

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from jobs.domain.adaptive import Cause, Limit, Look, Window
from jobs.domain.lanes import LanePolicy
from jobs.domain.latency import LatencyRecord
from workers.engines.seam import Engine, EngineStats
from workers.gate import EngineLoad, Gate
from workers.planning.merging import merged
from workers.slots import Slots

LOOK_EVERY_S = 0.5
REMEMBERED = 50  # answers of a lane that its P95 is taken from
RUNNING = 0.75  # of what is in flight: with fewer in the engine, more places would not feed it better
# Of the card: what CUDA and captured graphs take beside what the engine counts as its share.
MEMORY_MARGIN = 0.05

GpuFigures = Callable[[], Mapping[str, Mapping[str, float]]]

log = structlog.get_logger()


class _Lane:
    """One lane's limit and window, and the last answers that they are judged by."""

    def __init__(self, policy: LanePolicy) -> None:
        self.policy = policy
        self.limit = Limit(policy.least_limit, policy.limit, policy.most_limit)
        self.window = Window(policy.window_ms, policy.window_max_ms or policy.window_ms)
        self.moves = Counter[Cause]()
        self.last_cause: Cause | None = None
        self.moved_at_s = float("-inf")
        self._answers: deque[tuple[float, float, float]] = deque(maxlen=REMEMBERED)

    def ended(self, now_s: float, latency: LatencyRecord) -> None:
        """Remember an answer: when it was claimed, its time from then on, and from the beginning."""
        parts = (latency.admission_ms, latency.engine_queue_ms, latency.prefill_ms, latency.decode_ms)
        worked_ms = sum(part or 0.0 for part in parts)
        self._answers.append((now_s - worked_ms / 1_000, worked_ms, latency.total_ms or worked_ms))

    def slowness(self, since_s: float, *, in_all: bool) -> float | None:
        """P95 over the objective (0 without one), of jobs claimed since then; None where too few have ended.

        In all, or without the wait for a place: that is no fault of too many places.
        """
        times = sorted(
            total_ms if in_all else worked_ms
            for claimed_at_s, worked_ms, total_ms in self._answers
            if claimed_at_s >= since_s
        )
        if len(times) < self.limit.value / 2:
            return None
        return times[int(0.95 * (len(times) - 1))] / (self.policy.objective_ms or float("inf"))


class Admission:
    """The lanes' limits and windows in one worker, given in rank order."""

    def __init__(self, policies: Mapping[str, LanePolicy], gpu_figures: GpuFigures = dict) -> None:
        """Begin with what the policies say; `gpu_figures` tells of the worker's cards, {} without one."""
        self.total = max(policy.most_limit for policy in policies.values())
        self.slots = Slots({lane: policy.limit for lane, policy in policies.items()})
        load = EngineLoad()
        self.gates = {lane: Gate(policy, self.slots.limit(lane), load) for lane, policy in policies.items()}
        self._lanes = {lane: _Lane(policy) for lane, policy in policies.items()}
        self._gpu_figures = gpu_figures
        self._memory_cap = merged(list(policies.values())).memory_share + MEMORY_MARGIN
        self._preemptions = 0

    def ended(self, latency: LatencyRecord) -> None:
        """Learn how an attempt went."""
        if latency.outcome == "succeeded":
            self._lanes[latency.lane].ended(asyncio.get_running_loop().time(), latency)

    async def run(self, engine: Engine, wake: Callable[[], None]) -> None:
        """Move the limits for ever; `wake` after a move that opens places."""
        loop = asyncio.get_running_loop()
        self._preemptions = engine.stats().preemptions  # those of the warm-up do not count
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self.look(loop.time(), engine.stats()):
                wake()

    def look(self, now_s: float, stats: EngineStats) -> bool:
        """Move what there is to move; True where that opens a place to a lane that had none."""
        preempted = stats.preemptions > self._preemptions
        self._preemptions = stats.preemptions
        over_memory = self._memory_share() > self._memory_cap
        opened = False
        for name in self._lanes:
            seen = Look(
                taken=self.slots.taken(name),
                full=not self.slots.free(name) and stats.running >= RUNNING * self.slots.in_flight(),
                batch=stats.running / self.slots.total,
                slowness=self._slowness(name),
                engine_waiting=stats.waiting,
                kv_usage=stats.kv_usage or 0.0,
                preempted=preempted,
                over_memory=over_memory,
            )
            opened |= self._move(now_s, name, seen)
        return opened

    def figures(self) -> dict[str, Any]:
        """By lane: `limit` and `window_ms` now, the `moves` of both by cause, and the `last_cause`."""
        return {
            name: {
                "limit": self.slots.limit(name),
                "window_ms": lane.window.value,
                "moves": {cause.value: times for cause, times in lane.moves.items()},
                "last_cause": lane.last_cause and lane.last_cause.value,
            }
            for name, lane in self._lanes.items()
        }

    def _move(self, now_s: float, name: str, seen: Look) -> bool:
        lane = self._lanes[name]
        limit, window_ms = lane.limit.value, lane.window.value
        if cause := lane.limit.look(now_s, seen):
            lane.moved_at_s = now_s
            self._tell("admission.moved", name, cause, before=limit, after=lane.limit.value)
        if cause := lane.window.look(now_s, seen):
            self._tell("admission.window_moved", name, cause, before_ms=window_ms, after_ms=lane.window.value)
        if (limit, window_ms) == (lane.limit.value, lane.window.value):
            return False
        opened = self.slots.move(name, lane.limit.value)
        for each, gate in self.gates.items():  # a move of one lane is a move of what they share
            gate.move(self.slots.limit(each), self._lanes[each].window.value)
        return opened

    def _tell(self, event: str, name: str, cause: Cause, **moved: int) -> None:
        lane = self._lanes[name]
        lane.moves[cause] += 1
        lane.last_cause = cause
        log.info(event, lane=name, cause=cause.value, **moved)

    def _slowness(self, name: str) -> float | None:
        """The lane's own, or that of a faster one where that is worse: there, waiting counts too."""
        lane = self._lanes[name]
        own = lane.slowness(lane.moved_at_s, in_all=False)
        faster = itertools.takewhile(lambda other: other is not lane, self._lanes.values())
        worst = max((other.slowness(lane.moved_at_s, in_all=True) or 0.0 for other in faster), default=0.0)
        if own is None:  # then there is no saying that the lane has room, but there may be that it has none
            return worst if worst > 1 else None
        return max(own, worst)

    def _memory_share(self) -> float:
        """The fullest card's memory in use; where the figures tell the worker's own part, only that."""
        return max(
            (
                card.get("memory_own_bytes", card["memory_used_bytes"]) / card["memory_total_bytes"]
                for card in self._gpu_figures().values()
            ),
            default=0.0,
        )
