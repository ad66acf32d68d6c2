"""A worker of several lanes: hot passes warm passes cold, and none starves."""

from sqlalchemy import Engine, text

from jobs.broker import Announcer
from jobs.domain.lanes import queue_name
from jobs.store import intake
from tests.conftest import JobMaker
from tests.processes import Processes
from tests.waiting import until

LANES = ("hot", "warm", "cold")
EACH = 60


def flood(engine: Engine, new_job: JobMaker, announcer: Announcer) -> None:
    """Every lane has much work before the worker starts; cold's came first."""
    for lane in reversed(LANES):
        jobs = [new_job(lane=lane, queue=queue_name(lane, 5)) for _ in range(EACH)]
        with engine.begin() as connection:
            intake.insert_many(connection, jobs)
            connection.execute(text("UPDATE jobs SET announced_at = now() WHERE announced_at IS NULL"))
        announcer.announce_many([(job.queue, [str(job.id)]) for job in jobs])


def admissions(engine: Engine) -> list[str]:
    """The lanes of the jobs in the order of their claims."""
    with engine.begin() as connection:
        return list(connection.execute(text("SELECT lane FROM jobs ORDER BY claimed_at, id")).scalars())


def test_no_lane_waits_for_more_than_ten_admissions_and_hot_goes_first(
    processes: Processes, new_job: JobMaker, announcer: Announcer, engine: Engine
) -> None:
    flood(engine, new_job, announcer)
    # One place: each admission is a choice between all lanes.
    processes.worker(",".join(LANES), limit=1, time_scale=0.1)
    until(lambda: processes.count("jobs", "status = 'succeeded'") == EACH * 3, 60, "all answers")
    order = admissions(engine)
    left = dict.fromkeys(LANES, EACH)
    passed = dict.fromkeys(LANES, 0)
    for lane in order:
        left[lane] -= 1
        for other in LANES:
            passed[other] = 0 if other == lane or not left[other] else passed[other] + 1
        assert max(passed.values()) <= 10
    last = {lane: max(place for place, name in enumerate(order) if name == lane) for lane in LANES}
    assert last["hot"] < last["warm"] < last["cold"]
