"""The figures of a replay: latency by kind of work, objectives held, throughput, card-seconds."""

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from jobs.domain.lanes import LANES, Kind, lane_of_kind
from trilane.bench.lanes_replay import Served

Figures = dict[str, Any]


def figures(served: Sequence[Served], cards: int) -> Figures:
    """What `cards` cards did for these requests, of which one at least was completed.

    Times are from the arrival, in ms, and of completed requests alone; so are tokens and rates. `makespan_s`
    is until the last had ended, and card-seconds per request are `cards * makespan_s / completed`.
    """
    makespan_s = max(each.ended_at for each in served)
    completed = [each for each in served if each.completed]
    return {
        "requests": len(served),
        "completed": len(completed),
        "failures": Counter(code for code, _ in filter(None, (each.failure for each in served))),
        "makespan_s": makespan_s,
        "throughput_per_s": len(completed) / makespan_s,
        "output_tokens_per_s": sum(each.usage.output_tokens for each in completed) / makespan_s,
        "card_seconds_per_request": cards * makespan_s / len(completed),
        "kinds": {
            kind.value: _kind(kind, of_kind)
            for kind in Kind
            if (of_kind := [each for each in served if each.arrival.kind is kind])
        },
    }


def _kind(kind: Kind, served: Sequence[Served]) -> Figures:
    policy = LANES[lane_of_kind(LANES, kind)]
    objective_ms = policy.objective_ms or policy.deadline_s * 1_000
    completed = [each for each in served if each.completed]
    return {
        "requests": len(served),
        "completed": len(completed),
        **latency(served),
        "objective_ms": objective_ms,
        "attainment": sum(each.total_s * 1_000 <= objective_ms for each in completed) / len(served),
        "mean_prompt_tokens": _mean([each.usage.prompt_tokens for each in completed]),
        "mean_output_tokens": _mean([each.usage.output_tokens for each in completed]),
    }


def latency(served: Sequence[Served]) -> Figures:
    """From the arrival until the answer, and until its first token; of completed requests alone."""
    completed = [each for each in served if each.completed]
    return {
        "total_ms": percentiles([each.total_s for each in completed]),
        "ttft_ms": percentiles([each.ttft_s for each in completed]),
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """P50, P95 and P99 in milliseconds; None of nothing."""
    ordered = [each * 1_000 for each in seconds]
    if len(ordered) < 2:
        return dict.fromkeys(("p50", "p95", "p99"), ordered[0] if ordered else None)
    cuts = statistics.quantiles(ordered, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def over(part: float | None, whole: float | None) -> float | None:
    """The one over the other; None where either is missing, or there is nothing to compare with."""
    return part / whole if part is not None and whole else None


def _mean(values: Sequence[int]) -> float | None:
    return statistics.fmean(values) if values else None


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

    Only completed ones count. Where fewer than half of these had ended by then, over all of its time.
    """
    completed = [each for each in served if each.completed]
    full_s = max(each.claimed_at for each in completed)
    if 2 * sum(each.ended_at <= full_s for each in completed) < len(completed):
        full_s = max(each.ended_at for each in completed)
    return per_s(completed, full_s)


def per_s(served: Sequence[Served], until_s: float) -> float:
    """Requests that were completed in the first `until_s` seconds, a second."""
    return sum(each.completed and each.ended_at <= until_s for each in served) / until_s
