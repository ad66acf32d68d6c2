"""What `GET /metrics` can show: the names of its samples, with the values of their labels."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from jobs.broker import lane_queues
from jobs.domain.lanes import LANES
from jobs.store.deliveries import DeliveryFigures
from jobs.store.lanes import LaneFigures
from jobs.store.shadows import ShadowFigures
from jobs.store.workers import Worker, WorkerState
from producer.api.metrics import Metrics
from producer.api.snapshot import Snapshot

WORKER_FIGURES = {
    "engine": {
        "running": 1,
        "waiting": 0,
        "kv_usage": 0.5,
        "prefix_hit_rate": 0.2,
        "spec_acceptance": 0.8,
        "preemptions": 0,
    },
    "lanes": {lane: {"limit": 8, "window_ms": 50, "moves": {"latency": 1}} for lane in LANES},
    "warm_up": {"cold_start_s": 60.0, "first_request_ms": 900.0, "warm_request_ms": 90.0},
    "cards": {
        "0": {
            "memory_used_bytes": 1,
            "memory_total_bytes": 2,
            "utilisation": 0.5,
            "bandwidth_utilisation": 0.5,
        }
    },
}


def exposed() -> dict[str, dict[str, set[str]]]:
    """Name of a sample -> label -> values, of an API that has served, with work in every lane."""
    metrics = Metrics()
    metrics.requests.labels("GET", "/v1/lanes", "200").observe(0.01)
    metrics.submitted.labels("chat", "hot").inc()
    figures = {lane: LaneFigures(p50_ms=1.0, p95_ms=2.0, p99_ms=3.0) for lane in LANES}
    worker = Worker("a worker", list(LANES), WorkerState.READY, figures=WORKER_FIGURES)
    shadow = ShadowFigures("cold", "hot", 1, 0, 1.0, 1.0)
    snapshot = Snapshot(figures, [worker], DeliveryFigures(), [shadow])
    text = metrics.render(snapshot, dict.fromkeys(lane_queues(list(LANES)), 0)).decode()
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name]  # a sample without labels is one too
            for label, value in sample.labels.items():
                found[sample.name][label].add(value)
    return found
