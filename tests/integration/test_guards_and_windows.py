"""Guards and windows through the API, a worker and the event stream."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

from jobs.settings import Settings
from jobs.store.tenants import Tenant
from tests.api import Api, serving
from tests.processes import Processes
from tests.waiting import until

WINDOWS = {"limit": 2, "max_model_len": 1_000, "windows": {"tokens": 200, "overlap": 40}}
DOCUMENT = "What does it say?\n\n" + "".join(f"The sea is wide, says line {n:03}. " for n in range(200))
# The simulated engine says "7 lane 7 batch 7 prefill 7 décode 7 队列7 cache ...", a token a word.
BANNED = [f"队列{n} CACHE" for n in range(1_024)]


def start(processes: Processes, lane: str, policy: dict[str, Any], **options: Any) -> None:
    """A sim worker of one lane under this policy."""
    process = processes.start(
        "worker",
        "--lanes",
        lane,
        "--engine",
        "sim",
        TRILANE_LANE=json.dumps({lane: policy}),
        TRILANE_ENGINE__OPTIONS=json.dumps(options),
    )
    until(
        lambda: process.poll() is not None or processes.count("workers", "state = 'ready'"), what="a worker"
    )
    assert process.poll() is None, processes.logs()


@pytest.fixture
def windowing(settings: Settings, engine: Engine, tenant: Tenant) -> Iterator[Api]:
    """An API that knows of the worker's windows."""
    with serving(settings.model_copy(update={"lane": {"cold": WINDOWS}}), engine, tenant) as running:
        yield running


def ended(api: Api, job_id: str) -> Any:
    """The job, once it has ended."""
    return until(
        lambda: job if (job := api.client.get(f"/v1/jobs/{job_id}").json())["finished_at"] else None,
        what="the job's end",
    )


def test_a_long_document_is_answered_in_windows_and_says_so(windowing: Api, processes: Processes) -> None:
    start(processes, "cold", WINDOWS, time_scale=0.01)
    accepted = windowing.post(kind="report", prompt=DOCUMENT, max_tokens=60).json()
    assert accepted["lane"] == "cold" and "in windows" in accepted["routed"]
    job = ended(windowing, accepted["id"])
    result, [latency] = job["result"], job["latency"]
    assert job["status"] == "succeeded", job["error"]
    assert result["windows"] >= 10
    calls, rest = divmod(result["output_tokens"], 60)
    assert calls > result["windows"] and rest == 0, "every window's answer and every merging"
    assert result["prompt_tokens"] > job["prompt_tokens"], "the overlaps and the merging were read, too"
    assert (latency["prompt_tokens"], latency["output_tokens"]) == (
        result["prompt_tokens"],
        result["output_tokens"],
    )
    assert latency["prefill_ms"] > 0 and latency["decode_ms"] > 0 and latency["batch_size"] == 1

    short = ended(windowing, windowing.accept(kind="report", prompt="Short.", lane="cold", max_tokens=20))
    assert short["result"]["windows"] == 0 and short["routed"] is None
    refused = windowing.post(kind="report", prompt=DOCUMENT, max_tokens=60, windows=False)
    assert (refused.status_code, refused.json()["error"]["limit"]) == (413, 1_000)


def test_no_banned_phrase_reaches_the_stream_or_the_result(
    api: Api, processes: Processes, tmp_path: Path
) -> None:
    file = tmp_path / "banned.txt"
    file.write_text("\n".join(BANNED), "utf-8")
    policy = {"guards": {"banned_file": str(file)}}
    start(processes, "warm", policy, step_ms=[[1, 40.0], [8, 41.0]])
    job_id = api.accept(kind="ticket", max_tokens=400)
    told, body = "", ""
    with api.client.stream("GET", f"/v1/jobs/{job_id}/events") as answer:
        for line in answer.iter_lines():
            body += line
            name, _, value = line.partition(": ")
            if name == "data" and "text" in (data := json.loads(value)):
                told += data["text"]
    job = ended(api, job_id)
    result = job["result"]
    assert result["finish_reason"] == "content_filter"
    assert result["prompt_tokens"] > 0 and 1 <= result["output_tokens"] <= 11
    assert told and result["output"].startswith(told), "it was told of while it came"
    number = result["output"].split()[-1]
    assert number.isdecimal() and f"队列{number} cache" not in body
    assert "队列" not in told, "what may begin a phrase waited"
    assert job["latency"][0]["outcome"] == "succeeded"


def test_a_list_that_is_not_there_stops_the_worker_by_name(processes: Processes, tmp_path: Path) -> None:
    policy = {"guards": {"banned_file": str(tmp_path / "nowhere.txt")}}
    process = processes.start(
        "worker", "--lanes", "warm", "--engine", "sim", TRILANE_LANE=json.dumps({"warm": policy})
    )
    assert process.wait(30) != 0
    assert "nowhere.txt" in processes.logs()


def test_the_view_of_a_job_is_the_same_however_it_is_read(windowing: Api, engine: Engine) -> None:
    job_id = windowing.accept(kind="report", prompt=DOCUMENT, max_tokens=60)
    read, [listed] = (
        windowing.client.get(f"/v1/jobs/{job_id}").json(),
        windowing.client.get("/v1/jobs").json()["data"],
    )
    assert read["routed"] == listed["routed"] != ""
    with engine.begin() as connection:
        stored = connection.execute(text("SELECT request FROM jobs")).scalar_one()
    assert stored["routed"] == read["routed"]
