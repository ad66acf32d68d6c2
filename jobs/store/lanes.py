"""The figures of the lanes: depth, running, oldest wait, throughput and percentiles."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, text

from jobs.domain.lanes import BANDS, parse_queue

WINDOW_S = 300


@dataclass(slots=True)
class LaneFigures:
    """One lane now, and over the last `WINDOW_S` seconds; milliseconds are end to end, None without data."""

    depth: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BANDS, 0))
    running: int = 0
    oldest_wait_s: float | None = None
    succeeded: int = 0
    throughput_per_s: float = 0.0
    output_tokens_per_s: float = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


_WAITING = text(
    """
    SELECT queue, count(*) AS depth,
           extract(epoch FROM now() - min(ready_at) FILTER (WHERE ready_at <= now()))::float8 AS oldest_s
    FROM jobs WHERE status = 'queued' GROUP BY queue
    """
)
_RUNNING = text("SELECT lane, count(*) AS running FROM jobs WHERE status = 'running' GROUP BY lane")
_RECENT = text(
    """
    SELECT lane, count(*) AS succeeded, coalesce(sum(output_tokens), 0) AS output_tokens,
           percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY total_ms) AS percentiles
    FROM latency_records
    WHERE lane = ANY(:lanes) AND recorded_at > now() - make_interval(secs => :window_s)
    AND outcome = 'succeeded' GROUP BY lane
    """
)


def figures(connection: Connection, names: list[str], window_s: int = WINDOW_S) -> Mapping[str, LaneFigures]:
    """The figures of each named lane, over the last `window_s` seconds."""
    lanes = {name: LaneFigures() for name in names}
    for row in connection.execute(_WAITING):
        name, band, _ = parse_queue(row.queue)
        if name in lanes:
            lane = lanes[name]
            lane.depth[band] = lane.depth.get(band, 0) + row.depth
            if row.oldest_s is not None:
                lane.oldest_wait_s = max(lane.oldest_wait_s or 0.0, row.oldest_s)
    for row in connection.execute(_RUNNING):
        if row.lane in lanes:
            lanes[row.lane].running = row.running
    for row in connection.execute(_RECENT, {"lanes": names, "window_s": window_s}):
        lane = lanes[row.lane]
        lane.succeeded, lane.throughput_per_s = row.succeeded, row.succeeded / window_s
        lane.output_tokens_per_s = float(row.output_tokens) / window_s
        lane.p50_ms, lane.p95_ms, lane.p99_ms = row.percentiles
    return lanes
