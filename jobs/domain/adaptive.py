"""The rules by which a lane's limit and its admission window move: values in, moves out, time passed in."""

from dataclasses import dataclass
from enum import StrEnum
from math import floor
from typing import Final

# Shares are of the lane's objective for latency, of all there is for the KV cache and places.
HEADROOM: Final = 0.9  # of the objective: above it nothing grows
KV_FULL: Final = 0.75
SHRINK: Final = 0.8  # a decrease leaves so much: from 10 it goes to 8, from 8 to 6
# Hysteresis, in seconds. No up, down and up again ever fits into the shorter of the first two.
REGROW_AFTER_S: Final = 30.0  # from a decrease that trouble caused to the next increase
UNUSED_S: Final = 30.0  # at work, and never fewer than two places to spare
GROW_AFTER_S: Final = 1.0  # every place was taken for so long
SETTLE_S: Final = 3.0  # from one decrease to the next: what was admitted before it must leave first
ENGINE_QUEUE_S: Final = 5.0  # passing queues are how an engine takes its requests in
KV_FULL_S: Final = 300.0
WINDOW_AFTER_S: Final = 2.0
WINDOW_STEPS: Final = 3  # from the least window to the most
BATCH_EMPTY: Final = 0.5
BATCH_FULL: Final = 0.75
WINDOW_HEADROOM: Final = 0.7  # of the objective: above it the window does not widen


class Cause(StrEnum):
    """Why a limit or a window moved."""

    WAITING = "waiting"  # up: jobs wait while every place is taken, and the engine has room
    MEMORY = "memory"  # down: the worker holds more of its device than the engine's cap
    PREEMPTIONS = "preemptions"  # down: the engine threw sequences out of its KV cache
    LATENCY = "latency"  # down: P95 is above the objective
    ENGINE_QUEUE = "engine_queue"  # down: what was admitted waits inside the engine
    KV_USAGE = "kv_usage"  # down: the KV cache is nearly full, and stays so
    UNUSED = "unused"  # down: a lane at work always had places to spare
    BATCH_FULL = "batch_full"  # the window wider
    BATCH_EMPTY = "batch_empty"  # the window narrower
    NEAR_OBJECTIVE = "near_objective"  # the window narrower, before the limit has to shrink


@dataclass(frozen=True, slots=True)
class Look:
    """What is seen of a lane and its engine at one moment.

    `slowness` is P95 latency over the objective, None while too few answers tell.
    """

    taken: int = 0  # places of the lane
    full: bool = False  # no place is left for the lane, and the engine runs what was admitted
    batch: float = 0.0  # sequences running over places
    slowness: float | None = None
    engine_waiting: int = 0
    kv_usage: float = 0.0
    preempted: bool = False  # since the last look
    over_memory: bool = False

    @property
    def has_room(self) -> bool:
        """Whether one job more would do no harm, as far as can be told."""
        return (
            self.slowness is not None
            and self.slowness < HEADROOM
            and self.kv_usage <= KV_FULL
            and not (self.engine_waiting or self.preempted or self.over_memory)
        )


class _Held:
    """For how long each cause has been there."""

    def __init__(self) -> None:
        self._held_s: dict[Cause, float] = {}
        self._seen_at_s = 0.0

    def see(self, now_s: float, there: dict[Cause, bool | None]) -> dict[Cause, float]:
        """Each cause's seconds: on where it is there, from zero where it is not; None stops its clock."""
        passed_s, self._seen_at_s = now_s - self._seen_at_s, now_s
        self._held_s = {
            cause: self._held_s[cause] + (passed_s if holds else 0.0) if cause in self._held_s else 0.0
            for cause, holds in there.items()
            if holds is not False
        }
        return self._held_s

    def again(self, cause: Cause) -> None:
        """Count the cause's time anew."""
        self._held_s[cause] = 0.0


# How long each cause must hold before it moves a limit; what comes first is what a decrease is put down to.
_AFTER_S: Final = {
    Cause.MEMORY: 0.0,
    Cause.PREEMPTIONS: 0.0,
    Cause.LATENCY: 0.0,
    Cause.ENGINE_QUEUE: ENGINE_QUEUE_S,
    Cause.KV_USAGE: KV_FULL_S,
    Cause.UNUSED: UNUSED_S,
    Cause.WAITING: GROW_AFTER_S,
}


class Limit:
    """How many jobs a lane admits at once, from `least` to `most`: one more, or a fifth fewer."""

    def __init__(self, least: int, start: int, most: int) -> None:
        """Begin at `start`. Where `least` is `most`, nothing ever moves."""
        self.value = start
        self._least, self._most = least, most
        self._shrunk_at_s = float("-inf")
        self._held = _Held()

    def look(self, now_s: float, seen: Look) -> Cause | None:
        """Move where what is `seen` asks for it; the cause of the move, None where there was none."""
        needed = seen.full or self.value - seen.taken < 2
        held_s = self._held.see(
            now_s,
            {
                Cause.MEMORY: seen.over_memory,
                Cause.PREEMPTIONS: seen.preempted,
                Cause.LATENCY: seen.slowness is not None and seen.slowness > 1,
                Cause.ENGINE_QUEUE: seen.engine_waiting > 0,
                Cause.KV_USAGE: seen.kv_usage > KV_FULL,
                # An idle lane teaches nothing about the places that it will need.
                Cause.UNUSED: False if needed else (seen.taken > self._least or None),
                Cause.WAITING: seen.full,
            },
        )
        for cause, after_s in _AFTER_S.items():
            if held_s.get(cause, -1.0) >= after_s and self._move(now_s, cause, seen):
                self._held.again(cause)
                return cause
        return None

    def _move(self, now_s: float, cause: Cause, seen: Look) -> bool:
        before, since_shrunk_s = self.value, now_s - self._shrunk_at_s
        fewer = max(floor(self.value * SHRINK), self._least)
        if cause is Cause.WAITING:
            if seen.has_room and since_shrunk_s >= REGROW_AFTER_S:
                self.value = min(self.value + 1, self._most)
        elif cause is Cause.UNUSED:
            self.value = max(fewer, seen.taken + 1)
        elif since_shrunk_s >= SETTLE_S and fewer < self.value:
            self.value, self._shrunk_at_s = fewer, now_s
        return self.value != before


class Window:
    """How long a lane's gate gathers, in milliseconds from `least` to `most`: wider as the batch fills.

    A full batch has many sequences that each prefill holds up, so few large groups serve it better than
    many small ones; in an empty one waiting gains nothing. Where the objective is near, the window gives way
    before the limit does.
    """

    def __init__(self, least: int, most: int) -> None:
        """Begin at `least`."""
        self.value = least
        self._least, self._most = least, most
        self._step = max((most - least) // WINDOW_STEPS, 1)
        self._held = _Held()

    def look(self, now_s: float, seen: Look) -> Cause | None:
        """Move where what is `seen` asks for it; the cause of the move, None where there was none."""
        slow = seen.slowness is not None and seen.slowness > HEADROOM
        fast = seen.slowness is not None and seen.slowness < WINDOW_HEADROOM
        held = self._held.see(
            now_s,
            {
                Cause.NEAR_OBJECTIVE: slow,
                Cause.BATCH_EMPTY: seen.batch < BATCH_EMPTY and not slow,
                Cause.BATCH_FULL: seen.batch >= BATCH_FULL and fast,
            },
        )
        for cause, held_s in held.items():
            if held_s >= WINDOW_AFTER_S and self._move(cause):
                self._held.again(cause)
                return cause
        return None

    def _move(self, cause: Cause) -> bool:
        before = self.value
        step = self._step if cause is Cause.BATCH_FULL else -self._step
        self.value = min(max(self.value + step, self._least), self._most)
        return self.value != before
