"""A worker process on a card: it is bound to it, shares it under MPS, and takes its turn to start there."""

import asyncio
import json
import tempfile
from pathlib import Path

import pytest

from tests.processes import Processes
from tests.waiting import until
from workers import card_lock, mps

AT_ONCE = json.dumps({"time_scale": 0})
DAEMON = """#!/bin/sh
pid=$CUDA_MPS_PIPE_DIRECTORY/nvidia-cuda-mps-control.pid
if [ "$1" = -d ]; then touch "$pid"; else test -e "$pid"; fi
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory for temporary files that only this test and its workers know."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return str(tmp_path)


def test_a_worker_starts_on_its_card_when_the_card_is_free(processes: Processes, temporary: str) -> None:
    async def start() -> None:
        async with card_lock.starting([0]):
            process = processes.start(
                *("worker", "--lane", "cold", "--gpu", "0", "--engine", "sim"),
                TRILANE_ENGINE__OPTIONS=AT_ONCE,
                TMPDIR=temporary,
            )
            until(lambda: process.poll() is not None or "card.waiting" in processes.logs(), what="the wait")
            assert process.poll() is None, processes.logs()
            until(lambda: processes.count("workers", "state = 'starting'") == 1, what="its row")
        until(lambda: processes.count("workers", "state = 'ready'") == 1, what="a ready worker")

    asyncio.run(start())
    logs = processes.logs()
    assert logs.index("cards.pinned") < logs.index("card.waiting") < logs.index("worker.started")


def test_a_worker_shares_its_card_as_its_entry_says(processes: Processes, temporary: str) -> None:
    program = Path(temporary) / mps.CONTROL
    program.write_text(DAEMON)
    program.chmod(0o755)
    entry = {"lanes": ["cold"], "gpus": [0], "engine": "sim", "mps": {"low_priority": True}}
    process = processes.start(
        *("worker", "--lane", "cold", "--gpu", "0"),
        TRILANE_WORKERS=json.dumps([entry]),
        TRILANE_ENGINE__OPTIONS=AT_ONCE,
        TMPDIR=temporary,
        PATH=f"{temporary}:/usr/bin:/bin",
    )
    ready = "state = 'ready' AND engine = 'sim'"
    until(lambda: process.poll() is not None or processes.count("workers", ready), what="a ready worker")
    assert process.poll() is None, processes.logs()
    assert "mps.started" in processes.logs()
    assert "mps.joined" in processes.logs()


def test_a_worker_that_was_bound_elsewhere_does_not_start(processes: Processes) -> None:
    process = processes.start(
        "worker", "--lane", "cold", "--gpu", "0", "--engine", "sim", CUDA_VISIBLE_DEVICES="3"
    )
    assert process.wait(30) == 1
    assert "Error: --gpu 0: CUDA_VISIBLE_DEVICES is already set to '3'" in processes.logs()
    assert "Traceback" not in processes.logs()
