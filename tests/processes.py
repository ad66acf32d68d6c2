"""Starts real processes of Trilane for the tests, on the test's own database and Redis."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from sqlalchemy import Engine, text

from jobs.settings import Settings
from tests.conftest import SECRET_KEY
from tests.waiting import until

LEASE_S = 2.0


def is_gone(pid: int) -> bool:
    """Whether no process of this number runs any more."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


class Processes:
    """Starts processes of Trilane, tells what they logged, and ends them all."""

    def __init__(self, settings: Settings, engine: Engine, logs: Path) -> None:
        self.settings, self.engine, self._logs = settings, engine, logs
        self._started: list[subprocess.Popen[bytes]] = []
        self.environment = {
            "TRILANE_DATABASE_URL": settings.database_url,
            "TRILANE_REDIS_URL": settings.redis_url,
            "TRILANE_SECRET_KEY": SECRET_KEY,
            "TRILANE_LEASE__LEASE_S": str(LEASE_S),
            "TRILANE_LEASE__GRACE_S": "10",
            "TRILANE_CONFIG": str(logs / "none.toml"),
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start `trilane ...` with more environment."""
        log = self._logs / f"{len(self._started)}-{arguments[0]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "trilane", *arguments],
                env={**os.environ, **self.environment, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return process

    def worker(
        self, lanes: str = "warm", *, limit: int = 8, model: str | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a sim worker, ready to work; `options` are of the sim engine's profile."""
        before = self._ready()
        process = self.start(
            "worker",
            "--lanes",
            lanes,
            "--engine",
            "sim",
            *(["--model", model] if model else []),
            TRILANE_ENGINE__OPTIONS=json.dumps({"time_scale": 0, **options}),
            TRILANE_LANE=json.dumps({lane: {"limit": limit} for lane in lanes.split(",")}),
        )
        until(lambda: process.poll() is not None or self._ready() > before, what="a ready worker")
        assert process.poll() is None, self.logs()
        return process

    def control(self, **environment: str) -> subprocess.Popen[bytes]:
        """Start a control process."""
        return self.start("control", **environment)

    def logs(self) -> str:
        """Everything that was logged."""
        return "\n".join(path.read_text(errors="replace") for path in sorted(self._logs.glob("*.log")))

    def end(self) -> None:
        """End what still runs."""
        running = [process for process in self._started if process.poll() is None]
        for process in running:
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in running:
            process.wait()

    def _ready(self) -> int:
        return self.count("workers", "state = 'ready'")

    def count(self, table: str, condition: str = "true") -> int:
        """How many rows of a table meet the condition."""
        with self.engine.begin() as connection:
            counted: int = connection.execute(
                text(f"SELECT count(*) FROM {table} WHERE {condition}")
            ).scalar_one()
        return counted
