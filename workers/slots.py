"""Counts a worker's places: how many more jobs each of its lanes may have in flight now."""

import threading
from collections.abc import Mapping


class Slots:
    """The places of one engine, shared by the lanes that a worker drains; safe for threads.

    Each lane has its own limit. Among several lanes one place is kept for the fastest while it uses none,
    and the slowest holds half of all places at most.
    """

    def __init__(self, limits: Mapping[str, int], total: int) -> None:
        """`limits` gives each lane's own limit, in rank order; `total` is what the engine takes at once."""
        self.total = total
        self._fastest = next(iter(limits))
        self._limits = {lane: min(limit, total) for lane, limit in limits.items()}
        if len(limits) > 1:
            slowest = list(limits)[-1]
            self._limits[slowest] = min(self._limits[slowest], max(total // 2, 1))
        self._used = dict.fromkeys(limits, 0)
        self._lock = threading.Lock()

    def limit(self, lane: str) -> int:
        """How many jobs the lane may have in flight at most."""
        return self._limits[lane]

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
            full = [name for name in self._used if not self._free(name)]
            self._used[lane] -= n
            return any(self._free(name) for name in full)

    def in_flight(self) -> int:
        """The places taken over all lanes."""
        with self._lock:
            return sum(self._used.values())

    def _free(self, lane: str) -> int:
        kept = int(lane != self._fastest and self.total > 1 and not self._used[self._fastest])
        left = self.total - sum(self._used.values()) - kept
        return max(min(self._limits[lane] - self._used[lane], left), 0)
