"""A worker with real vLLM on real servers: a job with its latency record, and one whose core is killed."""

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import Engine, text

from jobs.domain.jobs import Status
from jobs.domain.lanes import Kind
from jobs.settings import Settings
from producer import Client
from tests.processes import Processes
from tests.waiting import until
from trilane.bench.vllm_on_cpu import OPTIONS

START_S = 600.0
ANSWER_S = 60.0


@pytest.fixture
def processes(settings: Settings, engine: Engine, tmp_path: Path) -> Iterator[Processes]:
    """A way to start Trilane's processes."""
    made = Processes(settings, engine, tmp_path)
    yield made
    made.end()


def start_worker(processes: Processes, model: Path) -> subprocess.Popen[bytes]:
    """A ready worker of the hot lane."""
    before = processes.count("workers", "state = 'ready'")
    worker = processes.start(
        "worker",
        "--lanes",
        "hot",
        "--engine",
        "vllm",
        TRILANE_ENGINE__MODEL_PATH=str(model),
        TRILANE_ENGINE__OPTIONS=json.dumps(OPTIONS),
        TRILANE_LANE=json.dumps({"hot": {"warm_up": {"prompt_tokens": []}}}),
    )

    def ready() -> bool:
        return worker.poll() is not None or processes.count("workers", "state = 'ready'") > before

    until(ready, START_S, what="a ready worker")
    assert worker.poll() is None, processes.logs()
    return worker


def records(engine: Engine, job_id: str) -> list[dict[str, Any]]:
    """The latency records of a job's attempts."""
    query = text("SELECT * FROM latency_records WHERE job_id = :id ORDER BY attempt")
    with engine.begin() as connection:
        return [dict(row._mapping) for row in connection.execute(query, {"id": uuid.UUID(job_id)})]


def core_of(worker: subprocess.Popen[bytes]) -> psutil.Process:
    """vLLM's core process, which has the model."""
    children = psutil.Process(worker.pid).children(recursive=True)
    (core,) = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
    return core


def test_a_job_is_answered_and_another_survives_the_death_of_vllms_core(
    processes: Processes, settings: Settings, engine: Engine, tiny_llama: Path
) -> None:
    processes.control()
    worker = start_worker(processes, tiny_llama)
    client = Client(settings=settings)
    job_id = client.enqueue(Kind.CHAT, "Hello", max_tokens=8, temperature=0.0)
    assert client.wait(job_id, ANSWER_S).status is Status.SUCCEEDED
    (record,) = records(engine, job_id)
    assert (record["engine"], record["precision"], record["gpu"]) == ("vllm", "fp32", "cpu")
    assert (record["output_tokens"], record["preemptions"]) == (8, 0)
    assert min(record[name] for name in ("engine_queue_ms", "prefill_ms", "decode_ms")) > 0

    job_id = client.enqueue(Kind.CHAT, "A long tale", max_tokens=400, temperature=0.0)
    until(lambda: processes.count("jobs", "status = 'running'") == 1, what="the running job")
    core_of(worker).kill()
    assert worker.wait(ANSWER_S) == 1
    assert processes.count("results") == 1, "the second job has no result yet"
    start_worker(processes, tiny_llama)
    assert client.wait(job_id, ANSWER_S).status is Status.SUCCEEDED
    first, second = records(engine, job_id)
    assert (first["outcome"], second["outcome"]) == ("engine_dead", "succeeded")
    assert second["output_tokens"] == 400
    assert processes.count("results") == 2
    client.close()
