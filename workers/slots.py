"""Counts a worker's places: how many more jobs each of its lanes may have in flight now."""

import threading
from collections.abc import Mapping


class Slots:
    """The places of one engine, shared by the lanes that a worker drains; safe for threads.

    Each lane has its own limit, and the highest of them is what the engine takes at once. Among several
    lanes one place is kept for the fastest while it uses none, and the slowest holds half of all at most.
    """

    def __init__(self, limits: Mapping[str, int]) -> None:
        """`limits` gives each lane's own limit, in rank order."""
        ranked = list(limits)
        self._fastest, self._slowest = ranked[0], ranked[-1] if len(ranked) > 1 else None
        self._limits = dict(limits)
        self._used = dict.fromkeys(limits, 0)
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """How many jobs of all lanes the engine takes at once."""
        return max(self._limits.values())

    def limit(self, lane: str) -> int:
        """How many jobs the lane may have in flight at most."""
        with self._lock:
            return self._limit(lane)

    def move(self, lane: str, limit: int) -> bool:
        """Change the lane's limit; True where this opens a place to a lane that had none.

        What is in flight stays: above a lower limit nothing is taken until enough has ended.
        """
        with self._lock:
            full = self._full()
            self._limits[lane] = limit
            return any(self._free(name) for name in full)

    def free(self, lane: str) -> int:
        """How many more jobs the lane may have in flight."""
        with self._lock:
            return self._free(lane)

    def take(self, lane: str, wanted: int) -> int:
        """Take up to `wanted` places for the lane; returns how many were taken."""
        with self._lock:
            taken = min(wanted, self._free(lane))
            self._used[lane] += taken
            return taken

    def give(self, lane: str, n: int = 1) -> bool:
        """Give back `n` places of the lane; True where this opens one to a lane that had none."""
        with self._lock:
            full = self._full()
            self._used[lane] -= n
            return any(self._free(name) for name in full)

    def taken(self, lane: str) -> int:
        """The places that the lane's jobs hold."""
        with self._lock:
            return self._used[lane]

    def in_flight(self) -> int:
        """The places taken over all lanes."""
        with self._lock:
            return sum(self._used.values())

    def _full(self) -> list[str]:
        return [lane for lane in self._used if not self._free(lane)]

    def _free(self, lane: str) -> int:
        kept = int(lane != self._fastest and self.total > 1 and not self._used[self._fastest])
        left = self.total - sum(self._used.values()) - kept
        return max(min(self._limit(lane) - self._used[lane], left), 0)

    def _limit(self, lane: str) -> int:
        limit = self._limits[lane]
        return min(limit, max(self.total // 2, 1)) if lane == self._slowest else limit
