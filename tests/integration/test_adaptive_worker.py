"""A worker whose limit moves: Celery's consumer follows, with no message from anybody."""

import json
from typing import Any

from sqlalchemy import Engine, text

from jobs.broker import Announcer
from jobs.domain.jobs import NewJob
from jobs.store import intake
from tests.conftest import JobMaker
from tests.processes import Processes
from tests.waiting import until

JOBS = 40
# 20 tokens take 0.6 s, alone or in a full batch: far from the objective, so that there is room to grow.
ENGINE = {"time_scale": 1.0, "step_ms": [[1, 30.0], [8, 30.0]]}
LANE = {"limit": 1, "limit_min": 1, "limit_max": 4, "objective_ms": 60_000}


def a_ticket(new_job: JobMaker) -> NewJob:
    request = {"messages": [{"role": "user", "content": "hi"}], "sampling": {"max_tokens": 20}}
    return new_job(request=request)


def figures(engine: Engine) -> dict[str, Any]:
    with engine.begin() as connection:
        found = connection.execute(text("SELECT figures->'lanes'->'warm' FROM workers")).scalar_one()
    return dict(found or {})


def test_a_limit_that_grows_is_filled_at_once_and_told_of(
    processes: Processes, new_job: JobMaker, announcer: Announcer, engine: Engine
) -> None:
    jobs = [a_ticket(new_job) for _ in range(JOBS)]
    with engine.begin() as connection:
        intake.insert_many(connection, jobs)
        connection.execute(text("UPDATE jobs SET announced_at = now() WHERE announced_at IS NULL"))
    announcer.announce_many([(job.queue, [str(job.id)]) for job in jobs])
    processes.start(
        "worker",
        "--lanes",
        "warm",
        "--engine",
        "sim",
        TRILANE_ENGINE__OPTIONS=json.dumps(ENGINE),
        TRILANE_LANE=json.dumps({"warm": LANE}),
    )
    until(lambda: processes.count("jobs", "status = 'running'") == 4, 60, "a limit of four, filled")
    until(lambda: processes.count("jobs", "status = 'succeeded'") == JOBS, 60, "all answers")
    batches = "batch_size = {}"
    assert all(processes.count("latency_records", batches.format(n)) for n in (1, 2, 3, 4))
    assert not processes.count("latency_records", "batch_size > 4")
    assert not processes.count("jobs", "attempt > 1")
    until(lambda: figures(engine).get("limit") == 4, what="the limit in the worker's row")
    assert figures(engine)["moves"]["waiting"] == 3
    assert processes.logs().count("admission.moved") == 3
