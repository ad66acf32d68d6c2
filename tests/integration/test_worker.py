"""A worker process against real servers: claims, the fence, cancels, crashes and shutdown."""

import signal
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import redis
from sqlalchemy import Engine, text

from jobs import live
from jobs.broker import Announcer
from jobs.domain import clock
from jobs.domain.jobs import NewJob
from jobs.settings import Settings
from jobs.store import intake, moves
from tests.conftest import JobMaker
from tests.processes import LEASE_S, Processes
from tests.waiting import until

Submit = Callable[..., None]
SLOW: dict[str, Any] = {"time_scale": 1.0, "step_ms": [[1, 10.0], [8, 12.0]]}  # 100 tokens take a good second


def slow_job(new_job: JobMaker, **fields: Any) -> NewJob:
    request = {"messages": [{"role": "user", "content": "hi"}], "sampling": {"max_tokens": 100}}
    return new_job(request=request, **fields)


def row(engine: Engine, job_id: uuid.UUID) -> Any:
    with engine.begin() as connection:
        return connection.execute(text("SELECT * FROM jobs WHERE id = :id"), {"id": job_id}).one()


def outcomes(engine: Engine, job_id: uuid.UUID) -> list[str]:
    with engine.begin() as connection:
        rows = connection.execute(
            text("SELECT outcome FROM latency_records WHERE job_id = :id ORDER BY attempt"), {"id": job_id}
        )
        return [r.outcome for r in rows]


def test_jobs_are_answered_and_every_part_of_their_latency_is_kept(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    processes.worker(**SLOW)
    jobs = [new_job() for _ in range(20)]
    submit(*jobs)
    until(lambda: processes.count("jobs", "status = 'succeeded'") == 20, what="20 answers")
    with engine.begin() as connection:
        record = connection.execute(text("SELECT * FROM latency_records LIMIT 1")).one()._mapping
    unknown = {name for name, value in record.items() if value is None}
    assert unknown == set(), "every field of the record is filled by the sim engine"
    assert record["total_ms"] >= record["ttft_ms"] >= record["queue_ms"]


def test_the_same_message_twice_is_one_result(
    processes: Processes, submit: Submit, new_job: JobMaker, announcer: Announcer, engine: Engine
) -> None:
    processes.worker(**SLOW)
    job, after = slow_job(new_job), new_job()
    submit(job)
    for _ in range(3):
        announcer.announce(job.queue, [str(job.id), "not an id", str(job.id)])
    submit(after)
    until(lambda: processes.count("results") == 2, what="both answers")
    assert (row(engine, job.id).attempt, outcomes(engine, job.id)) == (1, ["succeeded"])


def test_two_workers_share_a_lane_and_answer_each_job_once(
    processes: Processes, submit: Submit, new_job: JobMaker
) -> None:
    processes.worker(**SLOW)
    processes.worker(**SLOW)
    submit(*(new_job() for _ in range(100)))
    until(lambda: processes.count("jobs", "status = 'succeeded'") == 100, what="100 answers")
    assert processes.count("jobs", "attempt > 1") == 0
    assert processes.count("(SELECT DISTINCT worker FROM latency_records) AS w") == 2


def test_a_killed_worker_costs_an_attempt_and_no_job(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    processes.control()
    workers = [processes.worker(**SLOW) for _ in range(2)]
    until(lambda: "control.leads" in processes.logs(), what="a leader")
    jobs = [slow_job(new_job) for _ in range(4)]
    submit(*jobs)
    until(lambda: processes.count("jobs", "status = 'running'") == 4, what="running jobs")
    owner = row(engine, jobs[0].id).worker
    next(w for w in workers if owner.endswith(f":{w.pid}")).send_signal(signal.SIGKILL)
    killed_at = time.monotonic()
    until(lambda: processes.count("jobs", "status = 'succeeded'") == 4, what="all answers")
    assert time.monotonic() - killed_at < 2 * LEASE_S + 2, "twice the lease, and the job's own second"
    assert processes.count("results") == 4
    assert outcomes(engine, jobs[0].id) == ["lease_lost", "succeeded"]


def test_a_worker_that_slept_through_its_lease_cannot_overwrite(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    processes.control()
    sleeper = processes.worker(**SLOW)
    job = slow_job(new_job)
    submit(job)
    until(lambda: row(engine, job.id).status == "running", what="a running job")
    sleeper.send_signal(signal.SIGSTOP)
    until(lambda: row(engine, job.id).status == "queued", what="a lost lease")
    processes.worker(**SLOW)
    until(lambda: row(engine, job.id).status == "succeeded", what="the second attempt's answer")
    sleeper.send_signal(signal.SIGCONT)
    until(lambda: processes.logs().count(f'"{job.id}"') >= 2, what="the sleeper's end of its attempt")
    assert row(engine, job.id).attempt == 2
    assert outcomes(engine, job.id) == ["lease_lost", "succeeded"]
    assert processes.count("results", "attempt = 2") == 1


def cancel(engine: Engine, job: NewJob) -> None:
    with engine.begin() as connection:
        assert moves.cancel(connection, job.tenant_id, job.id)


@pytest.mark.parametrize("hinted", [True, False], ids=["by a hint", "by a refused renewal"])
def test_a_cancelled_job_frees_its_place(
    processes: Processes,
    submit: Submit,
    new_job: JobMaker,
    engine: Engine,
    settings: Settings,
    hinted: bool,
) -> None:
    processes.worker(limit=1, time_scale=100.0)
    job, after = slow_job(new_job), slow_job(new_job)
    submit(job, after)
    until(lambda: row(engine, job.id).status == "running", what="a running job")
    cancel(engine, job)
    if hinted:
        redis.Redis.from_url(settings.redis_url).publish(live.CANCEL_CHANNEL, str(job.id))
    bound_s = 1.0 if hinted else LEASE_S
    until(lambda: row(engine, after.id).status == "running", bound_s, "the next job in the freed place")
    until(lambda: outcomes(engine, job.id) == ["cancel"], what="the cancelled attempt's latency record")
    assert row(engine, job.id).status == "cancelled"


def test_sigterm_finishes_what_ends_in_time_and_gives_the_rest_back(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    processes.environment["TRILANE_LEASE__GRACE_S"] = "2"
    leaving = processes.worker(limit=4, **SLOW)
    short, long = (
        slow_job(new_job),
        new_job(request={"messages": [{"role": "user", "content": "hi"}], "sampling": {"max_tokens": 4_000}}),
    )
    submit(short, long)
    until(lambda: processes.count("jobs", "status = 'running'") == 2, what="running jobs")
    leaving.send_signal(signal.SIGTERM)
    assert leaving.wait(2 + 5) == 0
    assert row(engine, short.id).status == "succeeded"
    back = row(engine, long.id)
    assert (back.status, back.failures, back.attempt) == ("queued", 0, 1)
    assert outcomes(engine, long.id) == ["shutdown"]
    assert processes.count("workers") == 0
    processes.worker(**SLOW)  # it was announced again: no control process runs here
    until(lambda: row(engine, long.id).status == "running", 5, "the job on another worker")
    assert row(engine, long.id).attempt == 2


def test_a_passed_deadline_ends_a_running_job(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    processes.worker(time_scale=100.0)
    job = slow_job(new_job, deadline=clock.now() + timedelta(seconds=1))
    submit(job)
    until(lambda: row(engine, job.id).status == "expired", 3, "the passed deadline")
    assert row(engine, job.id).error_code == "deadline_exceeded"
    assert outcomes(engine, job.id) == ["deadline"]


def test_what_a_busy_worker_cannot_start_stays_in_redis(
    processes: Processes, new_job: JobMaker, engine: Engine, announcer: Announcer
) -> None:
    processes.worker(limit=2, time_scale=100.0)
    jobs = [slow_job(new_job) for _ in range(9)]
    with engine.begin() as connection:
        intake.insert_many(connection, jobs)
        connection.execute(text("UPDATE jobs SET announced_at = now()"))
    announcer.announce(jobs[0].queue, [str(job.id) for job in jobs])
    until(lambda: processes.count("jobs", "status = 'running'") == 2, what="two running jobs")
    idle = processes.worker(limit=8, **SLOW)
    until(lambda: processes.count("jobs", "status = 'succeeded'") == 7, what="the others' answers")
    assert idle.poll() is None
    assert processes.count("jobs", "status = 'running'") == 2
