"""The order in which a worker polls its queues: hot passes warm passes cold, and none of them starves."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobs.domain.lanes import BANDS, parse_queue

MAX_WAIT = 10  # admissions of other lanes that a lane with waiting work and a free slot sees at most


class _Turns:
    """Names in rank order, but those that were passed over `patience` times come first."""

    def __init__(self, names: Sequence[str]) -> None:
        # Two names can be overdue at once, and the second of them waits one turn more; and so on.
        self.patience = MAX_WAIT - max(len(names) - 2, 0)
        self.passed = dict.fromkeys(names, 0)

    def order(self) -> list[str]:
        """The overdue, the longest passed over first; then the others by rank (sorting is stable)."""
        return sorted(self.passed, key=lambda name: -self.passed[name] if self.overdue(name) else 0)

    def overdue(self, name: str) -> bool:
        """Whether `name` goes before all that are not."""
        return self.passed[name] >= self.patience

    def served(self, name: str, times: int, polled: Sequence[str]) -> int:
        """Count `times` turns of `name`; those before it in `polled` had nothing to do.

        Returns how many more turns it may have without a poll: until one behind it is overdue, and none
        where one behind it has the higher rank.
        """
        at = polled.index(name) if name in polled else -1
        empty, behind = polled[: max(at, 0)], polled[at + 1 :]
        for other in empty:
            self.passed[other] = 0
        for other in self.passed:
            self.passed[other] += times
        self.passed[name] = 0
        ranks = list(self.passed)
        if any(ranks.index(other) < ranks.index(name) for other in behind):
            return 0
        return self.patience - max((self.passed[other] for other in behind), default=0)


class LaneOrder:
    """Lanes before bands, hot before warm before cold, urgent before normal before low; none starves.

    A lane (or a band within its lane) that is passed over too often is polled first once. Redis pops
    from the first queue with a message, so a lane that was polled in vain had nothing waiting, and its
    wait is counted anew. All methods belong to the consumer's thread.
    """

    def __init__(self, lanes: Sequence[str], free: Callable[[str], int]) -> None:
        """Order these lanes, given by rank; `free` tells how many more jobs a lane may admit now."""
        self._free = free
        self._lanes = _Turns(lanes)
        self._bands = {lane: _Turns(BANDS) for lane in lanes}
        self._polled: list[str] = []
        self._last_admission: dict[str, int] = {}
        self._admissions = 0
        self._polls = False  # whether nothing was admitted since the last poll
        self.more = 0  # jobs of the queue that was admitted since, which may follow without another poll

    def order(self, queues: Sequence[str]) -> list[str]:
        """The queues to poll now, first the first; only those of lanes with a free slot."""
        self._polls, self.more = True, 0
        self._polled = [lane for lane in self._lanes.order() if self._free(lane) > 0]
        places: dict[tuple[str, str], list[str]] = {}
        for queue in queues:
            lane, band, _model = parse_queue(queue)
            places.setdefault((lane, band), []).append(queue)
        return [
            queue
            for lane in self._polled
            for band in self._bands[lane].order()
            # Models share their band in turns.
            for queue in sorted(places.get((lane, band), ()), key=lambda q: self._last_admission.get(q, 0))
        ]

    def room(self, queue: str, n_jobs: int) -> int:
        """How many of a message's jobs may be admitted at once so that no lane starves: 1 at least for the
        first message of a poll."""
        if not self._polls:
            return min(n_jobs, self.more)
        lane, _band, _model = parse_queue(queue)
        waiting = [self._lanes.passed[other] for other in self._polled[self._rank(lane) + 1 :]]
        return min(n_jobs, max(self._lanes.patience - max(waiting), 1)) if waiting else n_jobs

    def admitted(self, queue: str, n_jobs: int) -> None:
        """Count `n_jobs` admissions from one message, before the next poll goes out."""
        lane, band, _model = parse_queue(queue)
        bands, self._polls = self._bands[lane], False
        self.more = max(
            min(
                self._lanes.served(lane, n_jobs, self._polled),
                bands.served(band, n_jobs, bands.order()),
            ),
            0,
        )
        self._admissions += 1
        self._last_admission[queue] = self._admissions

    def _rank(self, lane: str) -> int:
        return self._polled.index(lane) if lane in self._polled else 0


class LaneCycle:
    """kombu's queue order strategy: asks anew at each poll, so that free slots and turns are respected."""

    def __init__(self, order: Callable[[Sequence[str]], list[str]], more: Callable[[str], int]) -> None:
        """Ask `order` which of a channel's queues to poll, and `more` how much to take beyond a message."""
        self._order, self._more = order, more
        self._queues: list[str] = []
        self._last = ""
        self.polled: list[str] = []

    @property
    def partial(self) -> bool:
        """Whether the last poll left queues out."""
        return len(self.polled) < len(self._queues)

    def update(self, it: Iterable[str]) -> None:
        """Take the queues that the channel consumes."""
        self._queues = list(it)

    def consume(self, n: int) -> list[str]:
        """The queues of the next poll, in order; none: no poll goes out."""
        self.polled = self._order(self._queues)[:n]
        return self.polled

    def rotate(self, last_used: Any) -> Any:
        """Nothing turns here: turns are counted in admissions, not in polls."""
        self._last = last_used
        return last_used

    def more(self) -> tuple[str, int]:
        """The queue whose message came last, and how many more of its messages to take without a poll."""
        return self._last, self._more(self._last)
