"""The engines of the lanes' benchmark: simulated ones by their precision's fitted profile, or real ones."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from jobs.domain.policies import EnginePolicy, Precision
from jobs.settings import Settings
from trilane.bench.lanes_plan import Lanes
from workers.engines import registry
from workers.engines.seam import Engine
from workers.engines.sim import SimEngine
from workers.engines.sim_curves import A100_FP16, A100_INT8

STREAM_INTERVAL = 32  # of a simulated engine: fewer chunks, less to compute, the same times
KV_CACHE_GIB = 1.0  # of a real engine here, where several share one machine

Make = Callable[[Lanes, int], Engine]  # the engine of a worker of these lanes, on the card of this number


def simulated(
    lanes: Lanes, card: int, compute: Callable[[float], Awaitable[None]] | None = None
) -> SimEngine:
    """An A100 with the engine of the first of `lanes`, in the running loop's time.

    INT8 has a profile of its own; no other precision than FP16 was measured, so the rest runs as FP16.
    """
    policy = _policy(lanes)
    profile = replace(
        A100_INT8 if policy.precision is Precision.INT8 else A100_FP16,
        slots=_slots(lanes),
        max_model_len=_model_len(lanes),
        max_batched_tokens=policy.batched_tokens,
        long_prefill_tokens=policy.long_prefill_tokens,
        scheduling=policy.scheduling,
        seed=card,
        stream_interval=STREAM_INTERVAL,
    )
    return SimEngine("sim", profile, now=asyncio.get_running_loop().time, compute=compute)


def real(name: str, settings: Settings, longest: int) -> Make:
    """Engines of this name for requests of at most `longest` tokens; one thread each unless set otherwise.

    All have the checkpoint's own precision. Raises what `registry.build` raises.
    """

    def make(lanes: Lanes, card: int) -> Engine:
        config = registry.EngineConfig(
            settings.model,
            slots=_slots(lanes),
            max_model_len=min(_model_len(lanes), longest),
            model_path=settings.engine.model_path,
            threads=settings.engine.threads or 1,
            policy=replace(_policy(lanes), precision=Precision.AUTO, kv_cache_gib=KV_CACHE_GIB),
            options=settings.engine.options,
        )
        return registry.build(name, config)

    return make


def _policy(lanes: Lanes) -> EnginePolicy:
    return next(iter(lanes.values())).engine


def _slots(lanes: Lanes) -> int:
    return max(policy.most_limit for policy in lanes.values())


def _model_len(lanes: Lanes) -> int:
    return max(policy.max_model_len for policy in lanes.values())
