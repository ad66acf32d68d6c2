"""The figures of a replay: latency by kind of work, objectives held, throughput, card-seconds."""

import statistics
from collections.abc import Sequence
from typing import Any

from jobs.domain.lanes import LANES, Kind, lane_of_kind
from trilane.bench.lanes_replay import Served

Figures = dict[str, Any]


def figures(served: Sequence[Served], cards: int) -> Figures:
    """What `cards` cards did for these requests. Times are from the arrival, in ms; `makespan_s` is until the
    last had ended, and card-seconds per request are `cards * makespan_s / requests`."""
    makespan_s = max(each.ended_at for each in served)
    return {
        "requests": len(served),
        "completed": sum(each.completed for each in served),
        "makespan_s": makespan_s,
        "throughput_per_s": len(served) / makespan_s,
        "output_tokens_per_s": sum(each.output_tokens for each in served) / makespan_s,
        "card_seconds_per_request": cards * makespan_s / len(served),
        "kinds": {
            kind.value: _kind(kind, of_kind)
            for kind in Kind
            if (of_kind := [each for each in served if each.arrival.kind is kind])
        },
    }


def _kind(kind: Kind, served: Sequence[Served]) -> Figures:
    policy = LANES[lane_of_kind(LANES, kind)]
    objective_ms = policy.objective_ms or policy.deadline_s * 1_000
    kept = sum(each.completed and each.total_s * 1_000 <= objective_ms for each in served)
    return {
        "requests": len(served),
        "total_ms": percentiles([each.total_s for each in served]),
        "ttft_ms": percentiles([each.ttft_s for each in served]),
        "objective_ms": objective_ms,
        "attainment": kept / len(served),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """P50, P95 and P99 in milliseconds."""
    ordered = [each * 1_000 for each in seconds]
    cuts = statistics.quantiles(ordered * 2 if len(ordered) == 1 else ordered, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def busy_share(served: Sequence[Served], until_s: float) -> float:
    """The part of the first `until_s` seconds in which at least one of these was in a worker."""
    busy_s = busy_until = 0.0
    for each in sorted(served, key=lambda each: each.claimed_at):
        began = max(each.claimed_at, busy_until)
        busy_s += max(each.ended_at - began, 0.0)
        busy_until = max(busy_until, each.ended_at)
    return busy_s / until_s


def capacity_per_s(served: Sequence[Served]) -> float:
    """Requests a second of a backlog while all cards were full: until its last was claimed.

    Where fewer than half had ended by then, over all of its time.
    """
    full_s = max(each.claimed_at for each in served)
    if 2 * sum(each.ended_at <= full_s for each in served) < len(served):
        full_s = max(each.ended_at for each in served)
    return per_s(served, full_s)


def per_s(served: Sequence[Served], until_s: float) -> float:
    """Requests that ended in the first `until_s` seconds, a second."""
    return sum(each.ended_at <= until_s for each in served) / until_s
