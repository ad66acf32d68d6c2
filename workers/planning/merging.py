"""The policy of one engine that serves several lanes."""

from collections.abc import Sequence
from dataclasses import replace

from jobs.domain.lanes import LanePolicy, effective
from jobs.domain.policies import EnginePolicy, Scheduling


def merged(policies: Sequence[LanePolicy]) -> EnginePolicy:
    """One engine policy for lanes that stand in rank order; a single lane's is its own.

    The fastest lane says what the model is (precision, checkpoint, cache format); the room is that of the
    greediest (sequences, tokens of a step, share of memory); priorities decide who goes first. Speculation
    stays only where every lane asks for the same, since vLLM refuses logit bias with it.
    """
    engines = [effective(policy) for policy in policies]
    fastest = engines[0]
    if len(engines) == 1:
        return fastest
    caches = [engine.kv_cache_gib for engine in engines if engine.kv_cache_gib is not None]
    pieces = [engine.long_prefill_tokens for engine in engines if engine.long_prefill_tokens is not None]
    return replace(
        fastest,
        sequences=max(engine.sequences for engine in engines),
        batched_tokens=max(engine.batched_tokens for engine in engines),
        memory_share=max(engine.memory_share for engine in engines),
        kv_cache_gib=max(caches) if len(caches) == len(engines) else None,
        chunked_prefill=any(engine.chunked_prefill for engine in engines),
        long_prefill_tokens=min(pieces, default=None),
        scheduling=Scheduling.PRIORITY,
        prefix_caching=any(engine.prefix_caching for engine in engines),
        speculation=fastest.speculation if len({engine.speculation for engine in engines}) == 1 else None,
        tensor_parallel=max(engine.tensor_parallel for engine in engines),
    )
