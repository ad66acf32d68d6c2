"""How many deliveries a receiver may have under way; a slow one keeps one place until it is quick again."""

from collections import Counter

SLOW_FOR_S = 60.0


class Places:
    """Bounds per receiver, so that the ones that hang leave the sender's capacity to all others."""

    def __init__(self, per_host: int, slow_s: float) -> None:
        """`slow_s` is how long an attempt takes that makes its receiver a slow one, for `SLOW_FOR_S`."""
        self._per_host = per_host
        self._slow_s = slow_s
        self._under_way: Counter[str] = Counter()
        self._slow_until: dict[str, float] = {}

    def begin(self, host: str) -> None:
        """A delivery to the host begins."""
        self._under_way[host] += 1

    def end(self, host: str, now: float, took_s: float) -> None:
        """A delivery to the host has ended; `now` is monotonic seconds."""
        self._under_way[host] -= 1
        if took_s > self._slow_s:
            self._slow_until[host] = now + SLOW_FOR_S
        else:
            self._slow_until.pop(host, None)

    def left(self, now: float) -> dict[str, int]:
        """The free places of every host that has fewer than the bound."""
        self._under_way = +self._under_way
        self._slow_until = {host: until for host, until in self._slow_until.items() if until > now}
        return {
            host: (1 if host in self._slow_until else self._per_host) - self._under_way[host]
            for host in self._under_way.keys() | self._slow_until.keys()
        }
