"""How both designs are measured: rows over time by the database's clock, added latency, processor time."""

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import psutil
import psycopg

from trilane.bench.rig import Rig

_LOOK_EVERY_S = 0.1
_STALLED_S = 30.0  # three leases: what has not come by then is lost
_PROBE_EVERY_S = 0.001

OVERHEAD_PER_S = 20
OVERHEAD_JOBS = 200


@dataclass(frozen=True, slots=True)
class Drained:
    """A drained backlog: its rows, how fast they came, and what the worker and the servers spent on them."""

    rows: int
    per_s: float
    cpu_ms: Mapping[str, float]  # a row, by process
    rss_mb: float  # the worker's largest resident set, MiB


def drained(rig: Rig, table: str, n: int, worker: psutil.Process) -> Drained:
    """Wait until `table` has `n` rows, or until none has come for 30 s.

    The rate is of the rows after those of the first transaction, by the rows' `created_at` (the start of
    their transaction): so neither the start of a process nor the size of a group commit counts.
    """
    processes = {"worker": worker} | {name: psutil.Process(pid) for name, pid in rig.server_pids.items()}
    before = {name: _cpu_s(process) for name, process in processes.items()}
    rows, rss_mb, grown_at = 0, 0.0, time.monotonic()
    while rows < n and time.monotonic() - grown_at < _STALLED_S:
        time.sleep(_LOOK_EVERY_S)
        rss_mb = max(rss_mb, worker.memory_info().rss / 2**20)
        found = rig.sql(f"SELECT count(*) FROM {table}")
        if found > rows:
            rows, grown_at = found, time.monotonic()
    cpu_ms = {name: (_cpu_s(process) - before[name]) * 1e3 / n for name, process in processes.items()}
    per_s = rig.sql(
        "SELECT count(*) FILTER (WHERE created_at > first)"
        " / nullif(extract(epoch FROM max(created_at) - min(first))::float8, 0)"
        f" FROM {table}, (SELECT min(created_at) AS first FROM {table}) AS began"
    )
    return Drained(rows, per_s or 0.0, cpu_ms, rss_mb)


def _cpu_s(process: psutil.Process) -> float:
    """The processor time of a process and of its children, ended or not."""
    total = sum(process.cpu_times()[:4])
    for child in process.children():
        try:
            total += sum(child.cpu_times()[:2])
        except psutil.NoSuchProcess:  # it ended just now, and its parent's times have it
            continue
    return float(total)


def rate(n: int, work: Callable[[], object]) -> float:
    """How many of `n` things a second `work` does."""
    began = time.perf_counter()
    work()
    return n / (time.perf_counter() - began)


def added_latency_ms(rig: Rig, table: str, submit: Callable[[], str]) -> dict[str, float]:
    """P50, P95 and P99 from the start of a submit call until `table` shows the row of the id it returns.

    200 calls, 20 a second, on an idle system. One connection looks every millisecond or two while a row is
    due, the same for both designs. The latency of a row that has not come within 30 s is infinite.
    """
    called_at: list[float] = []
    ids: list[str] = []
    due = threading.Semaphore(0)
    with ThreadPoolExecutor(1, "watch") as pool:
        watching = pool.submit(_first_seen_at, rig.settings.database_url, table, due)
        start = time.perf_counter()
        for i in range(OVERHEAD_JOBS):
            time.sleep(max(0.0, start + i / OVERHEAD_PER_S - time.perf_counter()))
            called_at.append(time.perf_counter())
            due.release()
            ids.append(submit())
        seen_at = watching.result()
    ended_at = [seen_at.get(job_id, math.inf) for job_id in ids]
    took_ms = [(ended - called) * 1e3 for called, ended in zip(called_at, ended_at, strict=True)]
    cuts = statistics.quantiles(took_ms, n=100, method="inclusive")
    return {"p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


def _first_seen_at(database_url: str, table: str, due: threading.Semaphore) -> dict[str, float]:
    """When each row of `table` was first seen; one more is looked for with each release of `due`."""
    seen_at: dict[str, float] = {}
    newest = f"SELECT job_id FROM {table} ORDER BY created_at DESC LIMIT 50"
    with psycopg.connect(database_url, autocommit=True) as connection:
        for expected in range(1, OVERHEAD_JOBS + 1):
            due.acquire()
            give_up_at = time.perf_counter() + _STALLED_S
            while len(seen_at) < expected and time.perf_counter() < give_up_at:
                rows = connection.execute(newest).fetchall()
                now = time.perf_counter()
                for (job_id,) in rows:
                    seen_at.setdefault(str(job_id), now)
                time.sleep(_PROBE_EVERY_S)
    return seen_at
