"""Runs a fresh engine warm, so that no job pays for its first steps."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobs.domain.lanes import LanePolicy
from workers.engines.seam import Engine


async def warm_up(
    engine: Engine, policies: Sequence[LanePolicy], told: Callable[[Mapping[str, Any]], None]
) -> None:
    """Run the lanes' warm-up through `engine`, which has started; `told` gets the figures after each step."""
