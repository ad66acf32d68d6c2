"""The control process: the feeder's window, the sweeps, and what it does while Redis is away."""

import base64
import json
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import redis
from sqlalchemy import Engine, text

from jobs.broker import Announcer
from jobs.domain import clock
from jobs.settings import Settings
from jobs.store import claims, intake
from tests.conftest import JobMaker
from tests.processes import Processes
from tests.waiting import until
from workers.feed import Feeder
from workers.sweep import Sweeper

Submit = Callable[..., None]


def test_a_bulk_is_fed_and_drained(processes: Processes, new_job: JobMaker, engine: Engine) -> None:
    processes.control()
    processes.worker()
    with engine.begin() as connection:
        intake.insert_many(connection, [new_job() for _ in range(3_000)])
    until(lambda: processes.count("results") == 3_000, 60, "3,000 answers")
    assert processes.count("jobs", "attempt <> 1") == 0


def test_emptied_redis_loses_none_of_a_hundred_waiting_jobs(
    processes: Processes, submit: Submit, new_job: JobMaker, settings: Settings
) -> None:
    processes.environment["TRILANE_FEED__BACKOFF_S"] = "1"
    processes.control()
    processes.worker(limit=2, time_scale=1.0)
    submit(*(new_job() for _ in range(100)))
    redis.Redis.from_url(settings.redis_url).flushall()
    assert processes.count("jobs", "status = 'queued'") > 50
    until(lambda: processes.count("jobs", "status = 'succeeded'") == 100, 60, "100 answers")
    assert processes.count("results") == 100
    assert processes.count("jobs", "attempt > 1") == 0


def test_fifty_thousand_waiting_jobs_keep_redis_within_twice_the_window(
    settings: Settings, engine: Engine, new_job: JobMaker, announcer: Announcer
) -> None:
    jobs = [new_job() for _ in range(50_000)]
    with engine.begin() as connection:
        intake.insert_many(connection, jobs)
    feeder = Feeder(settings, engine, announcer)
    now = [0.0]
    sweeper = Sweeper(settings, engine, announcer, lambda ids: None, now=lambda: now[0])
    for _ in range(120):  # an hour, looked at every 30 s, in which nobody claims anything
        with engine.begin() as connection:
            connection.execute(
                text(
                    "UPDATE jobs SET announced_at = announced_at - interval '30 seconds'"
                    " WHERE status = 'queued' AND announced_at IS NOT NULL"
                )
            )
        now[0] += 30
        sweeper.step()
        feeder.step()
    messages: Any = redis.Redis.from_url(settings.redis_url).lrange("warm.normal", 0, -1)
    ids = [job_id for message in messages for job_id in ids_of(message)]
    assert set(ids) <= {str(job.id) for job in jobs}
    assert settings.feed.window // 2 < len(ids) <= 2 * settings.feed.window


def ids_of(message: bytes) -> list[str]:
    [[ids], _, _] = json.loads(base64.b64decode(json.loads(message)["body"]))
    return list(ids)


def test_a_job_starts_within_a_second_of_its_not_before(
    processes: Processes, submit: Submit, new_job: JobMaker
) -> None:
    processes.control()
    processes.worker()
    job = new_job(not_before=clock.now() + timedelta(seconds=2))
    submit(job)
    until(lambda: processes.count("jobs", "status = 'succeeded'") == 1, what="the answer")
    assert processes.count("jobs", "claimed_at < not_before") == 0
    assert processes.count("jobs", "claimed_at > not_before + interval '1 second'") == 0


def test_a_passed_deadline_ends_a_waiting_job(
    processes: Processes, submit: Submit, new_job: JobMaker
) -> None:
    processes.control()
    submit(new_job(deadline=clock.now() + timedelta(seconds=1)))
    until(lambda: processes.count("jobs", "status = 'expired'") == 1, what="the passed deadline")


def test_two_control_processes_do_no_harm_and_one_follows_the_other(
    processes: Processes, submit: Submit, new_job: JobMaker, engine: Engine
) -> None:
    first, second = processes.control(), processes.control()
    processes.worker()
    with engine.begin() as connection:
        intake.insert_many(connection, [new_job() for _ in range(300)])
    until(lambda: processes.count("results") == 300, 30, "300 answers")
    assert processes.count("jobs", "attempt <> 1") == 0
    until(lambda: processes.logs().count("control.ready") == 2, what="both processes")
    assert processes.logs().count("control.leads") == 1
    first.send_signal(signal.SIGKILL)
    second.send_signal(signal.SIGKILL)
    processes.control()
    until(lambda: processes.logs().count("control.leads") == 2, what="a new leader")


def test_sweeps_go_on_while_redis_is_away(processes: Processes, submit: Submit, new_job: JobMaker) -> None:
    processes.environment["TRILANE_REDIS_URL"] = "redis://127.0.0.1:9/0"
    processes.control()
    submit(new_job(deadline=clock.now() + timedelta(seconds=1)))
    until(lambda: processes.count("jobs", "status = 'expired'") == 1, 30, "the passed deadline")


def test_leases_are_not_called_lost_before_the_database_was_there_for_a_whole_one(
    settings: Settings, engine: Engine, new_job: JobMaker, announcer: Announcer, submit: Submit
) -> None:
    job = new_job()
    submit(job)
    with engine.begin() as connection:
        claims.claim(connection, [job.id], "w", -1)
    now, ended = [0.0], list[str]()
    sweeper = Sweeper(settings, engine, announcer, ended.extend, now=lambda: now[0])

    def status() -> str:
        with engine.begin() as connection:
            return str(connection.execute(text("SELECT status FROM jobs")).scalar_one())

    now[0] = settings.lease.lease_s - 0.1
    sweeper.step()
    assert status() == "running"
    sweeper.database_returned()
    now[0] += settings.lease.lease_s - 0.1
    sweeper.step()
    assert status() == "running"
    now[0] += 1.1
    sweeper.step()
    assert status() == "queued"
