"""The recorder against a real Postgres: groups, and values that the database refuses."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import Engine, event, text

from jobs.domain.jobs import Move, NewJob, Status
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import FinishReason, Usage
from jobs.store import claims, intake
from jobs.store.records import Answer, Ending
from tests.conftest import JobMaker
from workers.record import Recorder


def claimed(engine: Engine, new_job: JobMaker, n: int) -> list[NewJob]:
    jobs = [new_job() for _ in range(n)]
    with engine.begin() as connection:
        intake.insert_many(connection, jobs)
        claims.claim(connection, [job.id for job in jobs], "w", 60)
    return jobs


def success(job: NewJob, output: str = "yes") -> Ending:
    answer = Answer(output, FinishReason.STOP, Usage(1, 1))
    return Ending(job.id, 1, Move.SUCCEED, LatencyRecord("succeeded", "warm"), answer)


def record_together(engine: Engine, endings: Sequence[Ending]) -> list[Status | None]:
    async def run() -> list[Status | None]:
        with ThreadPoolExecutor(2) as executor:
            recorder = Recorder(engine, executor)
            return await asyncio.gather(*map(recorder.record, endings))

    return asyncio.run(run())


def test_endings_that_come_together_share_transactions(engine: Engine, new_job: JobMaker) -> None:
    jobs, commits = claimed(engine, new_job, 100), list[object]()
    event.listen(engine, "commit", commits.append)
    assert record_together(engine, [success(job) for job in jobs]) == [Status.SUCCEEDED] * 100
    assert len(commits) <= 2


@pytest.mark.parametrize("bad", ["a NUL \x00 byte", "a lone \ud800 surrogate"])
def test_an_answer_that_cannot_be_stored_fails_its_own_job_alone(
    engine: Engine, new_job: JobMaker, bad: str
) -> None:
    jobs = claimed(engine, new_job, 10)
    endings = [success(job, bad if n == 4 else "yes") for n, job in enumerate(jobs)]
    statuses = record_together(engine, endings)
    assert statuses == [Status.FAILED if n == 4 else Status.SUCCEEDED for n in range(10)]
    with engine.begin() as connection:
        code = connection.execute(
            text("SELECT error_code FROM jobs WHERE id = :id"), {"id": jobs[4].id}
        ).scalar_one()
    assert code == "output_not_storable"


def test_two_attempts_at_one_job_in_one_group_have_each_its_own_answer(
    engine: Engine, new_job: JobMaker
) -> None:
    [job] = claimed(engine, new_job, 1)
    with engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET attempt = 2"))
    stale, current = success(job, "stale"), replace(success(job, "current"), attempt=2)
    assert record_together(engine, [stale, current]) == [None, Status.SUCCEEDED]
    with engine.begin() as connection:
        assert connection.execute(text("SELECT output FROM results")).scalar_one() == "current"
