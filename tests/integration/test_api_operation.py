"""The routes of operation over HTTP: the lanes' figures, health, readiness and metrics."""

import httpx
from sqlalchemy import Engine

from jobs.settings import Settings
from jobs.store import workers
from jobs.store.tenants import Tenant
from jobs.store.workers import WorkerState
from tests.api import Api, serving
from tests.waiting import until


def report(api: Api, state: WorkerState, *lanes: str) -> None:
    with api.engine.begin() as connection:
        workers.report(connection, workers.Worker(f"w-{'-'.join(lanes)}", lanes, state))


def test_lanes_show_depth_latency_and_the_objective(api: Api) -> None:
    worker = api.worker()
    api.accept(priority=0)
    running, *done = (api.accept() for _ in range(4))
    worker.claim(running)
    for job_id in done:
        worker.claim(job_id)
        worker.succeed(job_id, "Orderly.")
    report(api, WorkerState.READY, "hot", "warm")
    answer = api.client.get("/v1/lanes").json()
    hot, warm, cold = answer["data"]
    assert (hot["name"], hot["depth"], hot["waiting"]) == ("hot", {"urgent": 1, "normal": 0, "low": 0}, 1)
    assert (hot["running"], hot["p50_ms"], hot["p99_ms"]) == (1, 12.5, 12.5)
    assert (hot["objective_ms"], hot["met"]) == (300, True)
    assert hot["throughput_per_s"] == 3 / answer["window_s"]
    assert hot["oldest_wait_s"] >= 0
    assert (warm["met"], warm["p99_ms"], warm["workers"]["ready"]) == (None, None, 1)
    assert (cold["objective_ms"], cold["met"], cold["workers"]["ready"]) == (None, None, 0)


def test_ready_means_database_broker_and_a_ready_worker_for_each_lane(api: Api) -> None:
    assert api.client.get("/healthz").json() == {"ok": True}
    answer = api.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["lanes"] == {"hot": "missing", "warm": "missing", "cold": "missing"}
    assert answer.json()["error"]["code"] == "not_ready"
    report(api, WorkerState.READY, "hot", "warm")
    report(api, WorkerState.WARMING, "cold")
    warming = {"hot": "ready", "warm": "ready", "cold": "warming"}
    until(lambda: api.client.get("/readyz").json()["lanes"] == warming, what="the warming lane")
    assert "lane cold is warming" in api.client.get("/readyz").json()["error"]["message"]
    report(api, WorkerState.READY, "cold")
    until(lambda: api.client.get("/readyz").status_code == 200, what="readiness")
    body = api.client.get("/readyz").json()
    assert (body["ready"], body["database"], body["broker"], body["error"]) == (True, "ready", "ready", None)


def test_metrics_tell_of_requests_queues_and_lanes(api: Api) -> None:
    worker, job_id = api.worker(), api.accept()
    api.accept(kind="ticket", priority=9)
    worker.claim(job_id)
    worker.succeed(job_id, "Orderly.")
    api.client.get(f"/v1/jobs/{job_id}")
    api.client.get("/nowhere")
    report(api, WorkerState.READY, "hot")
    answer = httpx.get(f"{api.url}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    requests = "trilane_http_request_duration_seconds_count"
    shown = set(answer.text.splitlines())
    assert {
        'trilane_up{part="database"} 1.0',
        'trilane_up{part="broker"} 1.0',
        'trilane_queue_depth{band="low",lane="warm"} 1.0',
        'trilane_jobs_waiting{band="low",lane="warm"} 1.0',
        'trilane_jobs_running{lane="hot"} 0.0',
        'trilane_job_latency_seconds{lane="hot",quantile="0.99"} 0.0125',
        'trilane_workers{lane="hot",state="ready"} 1.0',
        'trilane_jobs_submitted_total{kind="chat",lane="hot"} 1.0',
        f'{requests}{{method="POST",route="/v1/jobs",status="202"}} 2.0',
        f'{requests}{{method="GET",route="/v1/jobs/{{job_id}}",status="200"}} 1.0',
        f'{requests}{{method="GET",route="unmatched",status="404"}} 1.0',
    } - shown == set()
    assert job_id not in answer.text


def test_metrics_need_a_key_where_others_reach_the_api(
    settings: Settings, engine: Engine, tenant: Tenant
) -> None:
    reachable = settings.model_copy(update={"api": settings.api.model_copy(update={"host": "0.0.0.0"})})
    with serving(reachable, engine, tenant) as api:
        assert httpx.get(f"{api.url}/metrics").status_code == 401
        assert api.client.get("/metrics").status_code == 200
        assert httpx.get(f"{api.url}/healthz").status_code == 200
