"""How much each lane of a worker admits: its places, its gates, and the figures of both."""

from collections.abc import Callable, Mapping
from typing import Any

from jobs.domain.lanes import LanePolicy
from jobs.domain.latency import LatencyRecord
from workers.engines.seam import Engine
from workers.gate import EngineLoad, Gate
from workers.slots import Slots


class Admission:
    """The lanes' limits and windows in one worker, given in rank order."""

    def __init__(self, policies: Mapping[str, LanePolicy]) -> None:
        """Begin with what the policies say."""
        self.total = max(policy.most_limit for policy in policies.values())
        self.slots = Slots({lane: policy.limit for lane, policy in policies.items()}, self.total)
        load = EngineLoad()
        self.gates = {lane: Gate(policy, self.slots.limit(lane), load) for lane, policy in policies.items()}

    def ended(self, latency: LatencyRecord) -> None:
        """Learn how an attempt went."""

    async def run(self, engine: Engine, wake: Callable[[], None]) -> None:
        """Move the limits for ever; `wake` after a move that opens places."""

    def figures(self) -> dict[str, Any]:
        """By lane: `limit` and `window_ms` now."""
        return {}
