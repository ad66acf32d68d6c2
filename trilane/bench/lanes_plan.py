"""The settings that the lanes' benchmark compares: one queue, and lanes with cards by their measured work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jobs.domain.lanes import LANES, Kind, LanePolicy
from jobs.domain.policies import EnginePolicy, Precision

Lanes = Mapping[str, LanePolicy]  # of one worker, in rank order

SINGLE = "all"  # the lane of the one queue

MOST_USED_FASTEST = 0.5  # of the fastest lane's cards: latency needs idle places when requests come
MOST_USED = 0.95  # of the other cards


def single(sequences: int) -> LanePolicy:
    """One queue for all work: `sequences` at once, vLLM's own budget of tokens on an A100 (2,048), FP16."""
    return LanePolicy(
        SINGLE,
        frozenset(Kind),
        objective_ms=None,
        routed_tokens=None,
        max_model_len=max(policy.max_model_len for policy in LANES.values()),
        limit=sequences,
        window_ms=0,
        work_conserving=True,
        time_limit_s=3_600,
        engine=EnginePolicy(sequences, batched_tokens=2_048, precision=Precision.FP16),
    )


def policies(precision: Precision | None, *, beside_fastest: bool = False) -> Lanes:
    """The lanes as they ship, all at `precision` or, with None, each at its own; their limits stay put.

    A lane without an objective admits as many as its engine takes, unless it shares a card with the fastest.
    """
    return {lane: _fixed(policy, precision, beside_fastest) for lane, policy in LANES.items()}


def _fixed(policy: LanePolicy, precision: Precision | None, beside_fastest: bool) -> LanePolicy:
    fills = policy.objective_ms is None and not beside_fastest
    return replace(
        policy,
        limit=policy.engine.sequences if fills else policy.limit,
        limit_min=None,
        limit_max=None,
        window_max_ms=None,
        engine=replace(policy.engine, precision=precision or policy.engine.precision),
    )


def assign(need: Mapping[str, float], cards: int, *, alike: bool) -> Sequence[tuple[str, ...]]:
    """The lanes that each card drains, from how many cards each lane's work keeps busy; lanes by rank.

    The fastest lane gets cards of its own until they are used to `MOST_USED_FASTEST`, as long as the others
    are left with enough for `MOST_USED`. Where their engines are `alike`, the other lanes drain all other
    cards together. Else each has one, and each further card goes to the lane with the most work a card. Where
    there are fewer cards than lanes, lanes drain a card together all the same.
    """
    fastest, *others = need
    alone, together = (fastest,), tuple(others)
    if cards == 1:
        return [alone + together]
    busy = sum(need[lane] for lane in others)
    own = 1
    while need[fastest] > own * MOST_USED_FASTEST and busy <= (cards - own - 1) * MOST_USED:
        own += 1
    left = cards - own
    if alike or left < len(others):
        return [alone] * own + [together] * left
    given = dict.fromkeys(others, 1)
    for _ in range(left - len(others)):
        given[max(others, key=lambda lane: need[lane] / given[lane])] += 1
    return [alone] * own + [(lane,) for lane in others for _ in range(given[lane])]
