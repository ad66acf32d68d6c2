"""A worker that warms up says how far it is, in its row and at /readyz, and takes no job before."""

import json
from collections.abc import Mapping
from typing import Any

from jobs.store import workers
from jobs.store.workers import Worker, WorkerState
from tests.api import Api
from tests.processes import Processes
from tests.waiting import until


def tell(api: Api, name: str, state: WorkerState, warm_up: Mapping[str, Any], *lanes: str) -> None:
    """Write a worker's row."""
    with api.engine.begin() as connection:
        workers.report(connection, Worker(name, lanes, state, figures={"warm_up": warm_up}))


def test_readyz_tells_how_far_a_lane_is(api: Api) -> None:
    tell(api, "a", WorkerState.WARMING, {"cold_start_s": 4.0, "done": 3, "of": 20}, "cold")
    tell(api, "b", WorkerState.WARMING, {"cold_start_s": 4.0, "done": 12, "of": 20}, "cold")
    tell(api, "c", WorkerState.WARMING, {"cold_start_s": 4.0}, "warm")
    tell(api, "d", WorkerState.READY, {"done": 20, "of": 20}, "hot")
    tell(api, "e", WorkerState.WARMING, {"done": 1, "of": 20}, "hot")
    expected = {"cold": {"done": 12, "of": 20}}
    until(lambda: api.client.get("/readyz").json()["warm_up"] == expected, what="the furthest worker")
    answer = api.client.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["lanes"] == {"hot": "ready", "warm": "warming", "cold": "warming"}
    assert answer.json()["error"]["message"] == "lane warm is warming, lane cold is warming (12 of 20)"
    tell(api, "b", WorkerState.READY, {"done": 20, "of": 20}, "cold")
    until(lambda: api.client.get("/readyz").json()["warm_up"] == {}, what="the end of the warm-up")


def test_a_worker_is_ready_after_its_warm_up_and_keeps_its_figures(processes: Processes) -> None:
    process = processes.start(
        *("worker", "--lane", "hot", "--engine", "sim"),
        TRILANE_ENGINE__WARM_UP="true",
        TRILANE_ENGINE__OPTIONS=json.dumps({"time_scale": 0.1}),
    )
    seen: list[tuple[str, dict[str, Any]]] = []

    def ready() -> bool:
        with processes.engine.begin() as connection:
            seen.extend((row.state.value, dict(row.figures["warm_up"])) for row in workers.alive(connection))
        return bool(seen) and seen[-1][0] == "ready"

    until(lambda: process.poll() is not None or ready(), what="a ready worker")
    assert process.poll() is None, processes.logs()
    figures = seen[-1][1]
    assert figures["done"] == figures["of"] > 9
    assert min(figures[name] for name in ("cold_start_s", "first_request_ms", "warm_request_ms")) > 0
    assert any(state == "warming" and "done" in figures for state, figures in seen)
    assert processes.logs().index("worker.warm") < processes.logs().index("worker.ready")


def test_a_warm_up_that_fails_ends_the_worker_with_its_reason(processes: Processes) -> None:
    process = processes.start(
        *("worker", "--lane", "hot", "--engine", "sim"),
        TRILANE_ENGINE__WARM_UP="true",
        TRILANE_ENGINE__OPTIONS=json.dumps({"time_scale": 0}),
        TRILANE_LANE=json.dumps({"hot": {"max_model_len": 1}}),
    )
    assert process.wait(30) == 1
    assert "the engine failed while it warmed up" in processes.logs()
    assert processes.count("workers", "state = 'ready'") == 0


def test_a_template_file_that_is_missing_is_told_before_the_engine_starts(processes: Processes) -> None:
    process = processes.start(
        *("worker", "--lane", "hot", "--engine", "sim"),
        TRILANE_ENGINE__WARM_UP="true",
        TRILANE_LANE=json.dumps({"hot": {"warm_up": {"templates_file": "/none"}}}),
    )
    assert process.wait(30) == 1
    assert "lane.hot.warm_up.templates_file: /none cannot be read" in processes.logs()
    assert "worker.started" not in processes.logs()
