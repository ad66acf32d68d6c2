"""What the live workers tell of themselves, as Prometheus metrics: engine, admission, warm-up, cards."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jobs.store.shadows import ShadowFigures
from jobs.store.workers import Worker

_Told = Mapping[str, Any]
_Metrics = Mapping[str, tuple[str, str, float]]

# Metric -> its help, the name of the figure, and what makes its unit the metric's.
_ENGINE: _Metrics = {
    "trilane_engine_running": ("Sequences in the engine", "running", 1),
    "trilane_engine_waiting": ("Requests waiting in the engine", "waiting", 1),
    "trilane_engine_kv_usage_ratio": ("Used part of the KV cache", "kv_usage", 1),
    "trilane_engine_prefix_hit_ratio": ("Prompt tokens found in the prefix cache", "prefix_hit_rate", 1),
    "trilane_engine_spec_acceptance_ratio": ("Accepted speculative tokens", "spec_acceptance", 1),
    "trilane_engine_preemptions": ("Sequences put back since the engine started", "preemptions", 1),
}
_WARM_UP: _Metrics = {
    "trilane_worker_cold_start_seconds": ("From nothing to a loaded engine", "cold_start_s", 1),
    "trilane_worker_first_request_seconds": ("First request of a cold engine", "first_request_ms", 1e-3),
    "trilane_worker_warm_request_seconds": ("First request of a warm engine", "warm_request_ms", 1e-3),
}
_LANE: _Metrics = {
    "trilane_admission_limit": ("Jobs that the worker admits at once", "limit", 1),
    "trilane_admission_window_seconds": ("How long a busy engine gathers", "window_ms", 1e-3),
}
_CARD: _Metrics = {
    "trilane_gpu_memory_used_bytes": ("Memory in use on the card", "memory_used_bytes", 1),
    "trilane_gpu_memory_total_bytes": ("Memory of the card", "memory_total_bytes", 1),
    "trilane_gpu_utilization_ratio": ("Part of the time in which a kernel ran", "utilisation", 1),
    "trilane_gpu_bandwidth_ratio": ("Part of the time in which memory moved", "bandwidth_utilisation", 1),
}


def of_workers(workers: Sequence[Worker]) -> Iterator[Metric]:
    """The figures of each live worker; what a worker does not tell is left out."""
    engines = [((one.name,), one.figures.get("engine") or {}) for one in workers]
    warm_ups = [((one.name,), one.figures.get("warm_up") or {}) for one in workers]
    lanes = [((one.name, lane), told) for one in workers for lane, told in _parts(one, "lanes")]
    cards = [((one.name, card), told) for one in workers for card, told in _parts(one, "cards")]
    yield from _gauges(_ENGINE, ["worker"], engines)
    yield from _gauges(_WARM_UP, ["worker"], warm_ups)
    yield from _gauges(_LANE, ["worker", "lane"], lanes)
    yield from _gauges(_CARD, ["worker", "card"], cards)
    moves = CounterMetricFamily(
        "trilane_admission_moves", "Moves of a lane's limit", labels=["worker", "lane", "cause"]
    )
    for names, told in lanes:
        for cause, count in told.get("moves", {}).items():
            moves.add_metric([*names, cause], count)
    yield moves


def of_shadows(figures: Sequence[ShadowFigures]) -> Iterator[Metric]:
    """How the lanes' answers agree with their references', over the last day."""
    labels = ["lane", "reference"]
    compared = GaugeMetricFamily(
        "trilane_shadows_compared", "Shadowed jobs that were compared", labels=labels
    )
    failed = GaugeMetricFamily("trilane_shadows_failed", "Shadowed jobs without two answers", labels=labels)
    exact = GaugeMetricFamily("trilane_shadow_exact_ratio", "Answers that are equal", labels=labels)
    agreement = GaugeMetricFamily("trilane_shadow_agreement_ratio", "Words that are equal", labels=labels)
    for one in figures:
        for metric, value in (
            (compared, one.compared),
            (failed, one.failed),
            (exact, one.exact),
            (agreement, one.agreement),
        ):
            metric.add_metric([one.lane, one.reference], value)
    yield from (compared, failed, exact, agreement)


def _parts(worker: Worker, name: str) -> list[tuple[str, _Told]]:
    return list((worker.figures.get(name) or {}).items())


def _gauges(
    metrics: _Metrics, labels: list[str], told: Sequence[tuple[Sequence[str], _Told]]
) -> Iterator[Metric]:
    for name, (text, figure, unit) in metrics.items():
        gauge = GaugeMetricFamily(name, text, labels=labels)
        for names, figures in told:
            if figures.get(figure) is not None:
                gauge.add_metric(names, figures[figure] * unit)
        yield gauge
