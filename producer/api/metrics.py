"""What Prometheus scrapes: requests as they come, and the lanes' figures as they are at the scrape."""

from collections import Counter as Counts
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jobs.domain.lanes import parse_queue
from producer.api.snapshot import Snapshot
from producer.api.worker_metrics import of_shadows, of_workers

_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The metrics of one app, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Histogram(
            "trilane_http_request_duration_seconds",
            "Time until the response began",
            ["method", "route", "status"],
            buckets=_BUCKETS_S,
            registry=self._registry,
        )
        self.submitted = Counter(
            "trilane_jobs_submitted", "Jobs accepted", ["kind", "lane"], registry=self._registry
        )

    def render(self, snapshot: Snapshot | None, depths: Mapping[str, int] | None) -> bytes:
        """All metrics as text; without a snapshot (no database) or depths (no Redis) what is left."""
        now = CollectorRegistry()
        now.register(_Figures(snapshot, depths))
        return generate_latest(self._registry) + generate_latest(now)


class _Figures(Collector):
    """The figures of one moment."""

    def __init__(self, snapshot: Snapshot | None, depths: Mapping[str, int] | None) -> None:
        self._snapshot, self._depths = snapshot, depths

    def collect(self) -> Iterator[Metric]:
        """One gauge after the other."""
        up = GaugeMetricFamily("trilane_up", "Whether a part answers", labels=["part"])
        up.add_metric(["database"], float(self._snapshot is not None))
        up.add_metric(["broker"], float(self._depths is not None))
        yield up
        if self._depths is not None:
            yield from _of_broker(self._depths)
        if self._snapshot is not None:
            yield from _of_database(self._snapshot)
            yield from of_workers(self._snapshot.workers)
            yield from of_shadows(self._snapshot.shadows)


def _of_broker(depths: Mapping[str, int]) -> Iterator[Metric]:
    queued = GaugeMetricFamily("trilane_queue_depth", "Messages in Redis", labels=["lane", "band"])
    summed = Counts[tuple[str, str]]()  # over the models, each of which has queues of its own
    for queue, depth in depths.items():
        summed[parse_queue(queue)[:2]] += depth
    for (lane, band), depth in summed.items():
        queued.add_metric([lane, band], depth)
    yield queued


def _of_database(snapshot: Snapshot) -> Iterator[Metric]:
    waiting = GaugeMetricFamily("trilane_jobs_waiting", "Queued jobs", labels=["lane", "band"])
    running = GaugeMetricFamily("trilane_jobs_running", "Running jobs", labels=["lane"])
    oldest = GaugeMetricFamily("trilane_oldest_wait_seconds", "Wait of the oldest ready job", labels=["lane"])
    latency = GaugeMetricFamily(
        "trilane_job_latency_seconds", "Accepted until recorded, last 5 minutes", labels=["lane", "quantile"]
    )
    workers = GaugeMetricFamily("trilane_workers", "Live workers", labels=["lane", "state"])
    for name, lane in snapshot.lanes.items():
        for band, depth in lane.depth.items():
            waiting.add_metric([name, band], depth)
        running.add_metric([name], lane.running)
        oldest.add_metric([name], lane.oldest_wait_s or 0.0)
        for quantile, ms in (("0.5", lane.p50_ms), ("0.95", lane.p95_ms), ("0.99", lane.p99_ms)):
            if ms is not None:
                latency.add_metric([name, quantile], ms / 1_000)
        for state, count in snapshot.worker_states(name).items():
            workers.add_metric([name, state.value], count)
    yield from (waiting, running, oldest, latency, workers)
    deliveries = snapshot.deliveries
    late = GaugeMetricFamily("trilane_webhook_oldest_due_seconds", "Lateness of the latest due webhook")
    late.add_metric([], deliveries.oldest_due_s)
    retrying = GaugeMetricFamily("trilane_webhooks_retrying", "Webhooks that failed and are tried again")
    retrying.add_metric([], deliveries.retrying)
    disabled = GaugeMetricFamily(
        "trilane_webhook_endpoints_disabled", "Webhook endpoints that nothing is sent to any more"
    )
    disabled.add_metric([], deliveries.disabled_endpoints)
    yield from (late, retrying, disabled)
