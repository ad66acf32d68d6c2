"""What a batch of 50,000 lines costs, and what it costs the hot lane: `python -m benchmarks.batch_50k`.

It starts servers, the API, the control process, and one simulated worker each for the hot and the cold lane.
The hot lane gets the same steady load all the time: first alone, then while the file is uploaded and checked,
then while the batch drains. Prints one JSON object; some minutes on two cores. See benchmarks/README.md.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
from sqlalchemy import text

from jobs.store import tenants
from trilane.bench.rig import Rig, servers
from trilane.stack import ports
from trilane.stack.supervisor import Part, Supervisor

ENDPOINT = "/v1/chat/completions"
HOT_TOKENS, BATCH_TOKENS = 12, 16
_LOOK_EVERY_S = 0.25
_MIB = 2**20
# The hot engine takes 10 ms a token and more; the cold one no time at all: it drains as fast as it can.
_ENGINES = {"hot": '{"time_scale": 1.0}', "cold": '{"time_scale": 0}'}


def main() -> None:
    """Measure, and print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--hot-per-s", type=float, default=4.0)
    parser.add_argument("--baseline-s", type=float, default=30.0, help="how long the hot lane runs alone")
    arguments = parser.parse_args()
    with servers(_say, {"cold": {"limit": 8}}) as rig:
        report = _measure(rig, arguments.lines, arguments.hot_per_s, arguments.baseline_s)
    json.dump(report, sys.stdout, indent=2)
    sys.stdout.write("\n")


@dataclass
class Memory:
    """The resident sets of processes, in MiB: before, and the largest since."""

    processes: dict[str, psutil.Process]
    before: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """From now on growth counts."""
        self.before = {name: process.memory_info().rss / _MIB for name, process in self.processes.items()}
        self.most = dict(self.before)

    def look(self) -> None:
        """Note what there is now."""
        for name, process in self.processes.items():
            self.most[name] = max(self.most[name], process.memory_info().rss / _MIB)

    def grown(self) -> dict[str, float]:
        """By how much each process grew at most."""
        return {name: round(self.most[name] - self.before[name], 1) for name in self.before}


def _measure(rig: Rig, lines: int, hot_per_s: float, baseline_s: float) -> dict[str, Any]:
    with rig.database.begin() as connection:
        key = tenants.create_key(connection, tenants.get_or_create(connection, "bench").id)
    port = ports.free()
    client = httpx.Client(
        base_url=f"http://{ports.HOST}:{port}", headers={"Authorization": f"Bearer {key}"}, timeout=300
    )
    load_before = os.getloadavg()[0]
    with _processes(rig, port, client) as pids, tempfile.TemporaryDirectory() as directory:
        memory = Memory({name: psutil.Process(pids[name]) for name in ("api", "control")})
        file = Path(directory, "input.jsonl")
        _write(file, lines, rig.settings.model)
        with _hot_load(client, hot_per_s):
            alone_from = _now(rig)
            time.sleep(baseline_s)
            memory.begin()
            accept_from, began = _now(rig), time.monotonic()
            batch = _create(client, file)
            upload_s = time.monotonic() - began
            batch = _until(client, batch, lambda now: now["status"] != "validating", memory)
            accept_s, drain_from = time.monotonic() - began, _now(rig)
            batch = _until(client, batch, lambda now: now["completed_at"] or now["failed_at"], memory)
            drain_to = _now(rig)
        drain_s = rig.sql("SELECT extract(epoch FROM finalizing_at - in_progress_at)::float8 FROM batches")
        write_s = rig.sql("SELECT extract(epoch FROM completed_at - finalizing_at)::float8 FROM batches")
        report = {
            "lines": lines,
            "input_mib": round(file.stat().st_size / _MIB, 1),
            "status": batch["status"],
            "request_counts": batch["request_counts"],
            "upload_s": round(upload_s, 2),
            "accept_s": round(accept_s, 2),
            "drain_per_s": round(lines / drain_s, 1) if drain_s else None,
            "write_files_s": round(write_s, 2) if write_s else None,
            "grown_mib": memory.grown(),
            "hot_ms": {
                "alone": _latency(rig, alone_from, accept_from),
                "while_accepting": _latency(rig, accept_from, drain_from),
                "while_draining": _latency(rig, drain_from, drain_to),
            },
            "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        }
    return report | {"targets": _targets(report)}


def _targets(report: dict[str, Any]) -> dict[str, bool]:
    return {
        "accept_s < 30": report["accept_s"] < 30,
        "grown_mib < 200": all(grown < 200 for grown in report["grown_mib"].values()),
        "every line answered": report["request_counts"]["completed"] == report["lines"],
        "hot_ms.p99 <= 300 at every time": all(part["p99"] <= 300 for part in report["hot_ms"].values()),
    }


@contextmanager
def _processes(rig: Rig, port: int, client: httpx.Client) -> Iterator[dict[str, int]]:
    """The API, the control process and two workers with their lanes' niceness; their process ids."""
    environment = rig.environment() | {
        "TRILANE_API__PORT": str(port),
        "TRILANE_ENGINE__NAME": "sim",
        "TRILANE_SECRET_KEY": secrets.token_urlsafe(32),
    }

    def answers() -> bool:
        try:
            return client.get("/healthz").is_success
        except httpx.TransportError:
            return False

    def ready(lane: str) -> bool:
        return bool(rig.sql(f"SELECT count(*) FROM workers WHERE state = 'ready' AND '{lane}' = ANY(lanes)"))

    def part(name: str, *arguments: str, ready: Callable[[], bool], niceness: int = 0, **env: str) -> Part:
        argv = [sys.executable, "-m", "trilane", *arguments]
        return Part(name, argv, environment | env, ready, niceness)

    workers = [
        part(
            lane,
            "worker",
            "--lanes",
            lane,
            ready=partial(ready, lane),
            niceness=rig.settings.lanes[lane].niceness,
            TRILANE_ENGINE__OPTIONS=options,
        )
        for lane, options in _ENGINES.items()
    ]
    supervisor = Supervisor(rig.logs, rig.say)
    with ExitStack() as stack:
        stack.callback(supervisor.stop)
        supervisor.start(
            part("api", "api", ready=answers), part("control", "control", ready=lambda: True), *workers
        )
        yield dict(supervisor.pids())


def _write(file: Path, lines: int, model: str) -> None:
    """An input file: a few hundred tokens a line."""
    with file.open("w") as output:
        for n in range(lines):
            content = f"Ticket {n}. " + "The parcel has not come, and nobody answers the telephone. " * 8
            body = {
                "model": model,
                "messages": [{"role": "user", "content": content}],
                "max_tokens": BATCH_TOKENS,
            }
            asked = {"custom_id": f"ticket-{n}", "method": "POST", "url": ENDPOINT, "body": body}
            output.write(json.dumps(asked) + "\n")


def _create(client: httpx.Client, file: Path) -> dict[str, Any]:
    with file.open("rb") as content:
        uploaded = client.post("/v1/files", files={"file": content}, data={"purpose": "batch"})
    asked = {"input_file_id": _body(uploaded)["id"], "endpoint": ENDPOINT, "completion_window": "24h"}
    return _body(client.post("/v1/batches", json=asked))


def _until(
    client: httpx.Client, batch: dict[str, Any], reached: Callable[[dict[str, Any]], Any], memory: Memory
) -> dict[str, Any]:
    while not reached(batch):
        time.sleep(_LOOK_EVERY_S)
        memory.look()
        batch = _body(client.get(f"/v1/batches/{batch['id']}"))
    return batch


def _body(answer: httpx.Response) -> dict[str, Any]:
    answer.raise_for_status()
    body: dict[str, Any] = answer.json()
    return body


@contextmanager
def _hot_load(client: httpx.Client, per_s: float) -> Iterator[None]:
    """Chat turns at a steady rate, whatever the answers take, until the block ends."""
    over = threading.Event()

    def submit() -> None:
        began = time.monotonic()
        n = 0
        while not over.wait(max(0.0, began + n / per_s - time.monotonic())):
            asked = {"kind": "chat", "prompt": f"Where is parcel {n}?", "max_tokens": HOT_TOKENS}
            _body(client.post("/v1/jobs", json=asked))
            n += 1

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _now(rig: Rig) -> Any:
    return rig.sql("SELECT clock_timestamp()")


def _latency(rig: Rig, begin: Any, end: Any) -> dict[str, float]:
    """The hot jobs accepted in that time: from acceptance until the answer was recorded, in ms."""
    with rig.database.begin() as connection:
        row = connection.execute(
            text(
                """
                SELECT count(*) AS jobs, percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (
                    ORDER BY extract(epoch FROM finished_at - created_at)::float8 * 1000) AS ms
                FROM jobs WHERE lane = 'hot' AND status = 'succeeded'
                AND created_at >= :begin AND created_at < :end
                """
            ),
            {"begin": begin, "end": end},
        ).one()
    cuts = row.ms or [0.0, 0.0, 0.0]
    return {"jobs": row.jobs} | {
        name: round(value, 1) for name, value in zip(("p50", "p95", "p99"), cuts, strict=True)
    }


def _say(line: str) -> None:
    print(line, file=sys.stderr)  # noqa: T201  # a script's progress


if __name__ == "__main__":
    main()
