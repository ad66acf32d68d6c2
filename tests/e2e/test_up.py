"""`trilane up` as its users meet it: ready file, restarts, refusals, stops, and jobs that outlive it."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.processes import is_gone
from tests.waiting import until
from trilane.stack import local

PARTS = {"postgres", "redis", "worker-hot", "worker-warm", "worker-cold", "api", "control", "beat", "flower"}

# Two workers for one lane, and one for the other two, all run warm first: for some seconds, to be seen.
TABLE = """
[engine]
warm_up = true
options = { time_scale = 3 }

[lane.hot.warm_up]
prompt_tokens = [512]

[lane.warm.warm_up]
prompt_tokens = [512]

[lane.cold.warm_up]
prompt_tokens = [512]

[[workers]]
lanes = ["hot"]

[[workers]]
lanes = ["warm", "cold"]

[[workers]]
lanes = ["hot"]
"""

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 40.0
WAIT_S = 30.0


@dataclass
class Up:
    """A running `trilane up`."""

    process: subprocess.Popen[bytes]
    ready: dict[str, Any]
    data_dir: Path
    output_path: Path

    @property
    def output(self) -> str:
        return self.output_path.read_text()

    @property
    def pids(self) -> dict[str, int]:
        """The process ids as `stack.json` tells them now."""
        pids: dict[str, int] = json.loads((self.data_dir / local.DESCRIPTION).read_text())["pids"]
        return pids

    def family(self) -> list[int]:
        """Every process that descends from the command, itself included."""
        root = psutil.Process(self.process.pid)
        return [root.pid, *(child.pid for child in root.children(recursive=True))]

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.ready['api_key']}"}
        return httpx.Client(base_url=self.ready["api"], headers=headers, timeout=10.0)


def command(data_dir: Path, *arguments: str) -> list[str]:
    """`trilane up` with the sim engine on free ports."""
    ports = ("--api-port", "0", "--flower-port", "0")
    return [
        *(sys.executable, "-m", "trilane", "up", "--data-dir", str(data_dir), "--engine", "sim"),
        *(*ports, *arguments),
    ]


@contextmanager
def run_up(data_dir: Path, config: str = "") -> Iterator[Up]:
    """`trilane up` on this data directory, ready; it is stopped at the end if the test did not."""
    ready_file, output = data_dir.parent / "ready.json", data_dir.parent / "output.txt"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRILANE_")}
    (data_dir.parent / "trilane.toml").write_text(config)
    env["TRILANE_CONFIG"] = str(data_dir.parent / "trilane.toml")
    with output.open("wb") as file:
        process = subprocess.Popen(
            command(data_dir, "--ready-file", str(ready_file)), env=env, stdout=file, stderr=file
        )
    try:
        until(lambda: ready_file.exists() or process.poll() is not None, START_TIMEOUT_S)
        if process.poll() is not None:
            raise AssertionError(f"trilane up ended:\n{output.read_text()}")
        yield Up(process, json.loads(ready_file.read_text()), data_dir, output)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_TIMEOUT_S)


def status_of(client: httpx.Client, job_id: str) -> str:
    status: str = client.get(f"/v1/jobs/{job_id}").raise_for_status().json()["status"]
    return status


def submit(client: httpx.Client, **fields: object) -> str:
    job = {"kind": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **fields}
    job_id: str = client.post("/v1/jobs", json=job).raise_for_status().json()["id"]
    return job_id


def test_a_stack_starts_heals_refuses_a_second_and_stops_and_its_jobs_outlive_it(
    tmp_path: Path,
) -> None:
    data_dir = tmp_path / "data"
    with run_up(data_dir) as running:
        ready_file = tmp_path / "ready.json"
        assert set(running.ready["pids"]) == PARTS
        assert stat.S_IMODE(ready_file.stat().st_mode) == 0o600
        assert (data_dir / "stack.json").read_text() == ready_file.read_text()
        assert httpx.get(f"{running.ready['api']}/readyz").status_code == 200
        assert httpx.get(f"{running.ready['flower']}/api/workers").status_code == 401
        assert running.ready["api_key"] in running.output
        assert os.getpriority(os.PRIO_PROCESS, running.pids["worker-cold"]) == 19

        with running.client() as client:
            done = submit(client)
            until(lambda: status_of(client, done) == "succeeded", WAIT_S)
            soon = datetime.now(UTC) + timedelta(seconds=20)
            waiting = submit(client, not_before=soon.isoformat())

            killed = running.pids["worker-hot"]
            os.kill(killed, signal.SIGKILL)
            until(lambda: running.pids.get("worker-hot", killed) != killed, WAIT_S)
            assert "worker-hot ended by SIGKILL" in running.output
            after = submit(client)
            until(lambda: status_of(client, after) == "succeeded", WAIT_S)

        second = subprocess.run(command(data_dir), capture_output=True, text=True, timeout=30)
        assert second.returncode == 1
        assert "another stack runs on" in second.stderr
        assert "Traceback" not in second.stderr

        family = running.family()
        assert len(family) > len(PARTS)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(40) == 0
        assert [pid for pid in family if not is_gone(pid)] == []
        assert not ready_file.exists()
        assert not (data_dir / "stack.json").exists()
        first_key = running.ready["api_key"]

    with run_up(data_dir, TABLE) as running:
        assert running.ready["api_key"] == first_key
        workers = {name for name in running.pids if name.startswith("worker-")}
        assert workers == {"worker-hot", "worker-hot-2", "worker-warm-cold"}
        for name in workers:
            assert re.search(rf"^{name} warms up: \d+ of \d+$", running.output, re.M), running.output
            assert f"{name} is ready after" in running.output
        with running.client() as client:
            assert status_of(client, done) == "succeeded"
            until(lambda: status_of(client, waiting) == "succeeded", 60.0)
        family = running.family()
        running.process.kill()
        until(lambda: all(map(is_gone, family)), WAIT_S)


def test_a_busy_port_that_was_asked_for_ends_with_one_clear_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        refused = subprocess.run(
            command(tmp_path / "data", "--api-port", str(port)), capture_output=True, text=True, timeout=30
        )
    assert refused.returncode == 1
    assert refused.stderr.strip() == (
        f"Error: port {port} is in use: end what listens there, or give another --api-port"
    )
