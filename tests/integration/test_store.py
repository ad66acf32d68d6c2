"""The store against a real Postgres: intake, claims, the fence, records, moves and sweeps."""

import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DataError

from jobs.domain import clock
from jobs.domain.jobs import Job, Move, NewJob, Status, Webhook, new_id
from jobs.domain.lanes import LANES, Kind
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import FinishReason, Usage
from jobs.store import claims, deliveries, feed, intake, lanes, moves, reads, records, sweeps, tenants
from jobs.store.records import Answer, Ending
from migrations import commands
from tests.conftest import JobMaker

WINDOW = 100


def store(engine: Engine, *jobs: NewJob, window: int = WINDOW) -> list[intake.Accepted]:
    accepted = []
    for job in jobs:
        with engine.begin() as connection:
            accepted.append(intake.insert(connection, job, window))
    return accepted


def claim(engine: Engine, *ids: uuid.UUID, worker: str = "w1", lease_s: float = 10) -> list[Any]:
    with engine.begin() as connection:
        return claims.claim(connection, ids, worker, lease_s)


def record(engine: Engine, *endings: Ending) -> records.Recorded:
    with engine.begin() as connection:
        return records.record(connection, endings)


def success(job_id: uuid.UUID, attempt: int = 1, output: str = "Nine to five.") -> Ending:
    answer = Answer(output, FinishReason.STOP, Usage(12, 4, 0))
    latency = LatencyRecord("succeeded", "warm", worker="w1", total_ms=12.5)
    return Ending(job_id, attempt, Move.SUCCEED, latency, answer)


def status_of(engine: Engine, job: NewJob) -> Status:
    with engine.begin() as connection:
        found = reads.get(connection, job.tenant_id, job.id)
    assert found is not None
    return found.status


def scalar(engine: Engine, statement: str, **values: Any) -> Any:
    with engine.begin() as connection:
        return connection.execute(text(statement), values).scalar_one()


def execute(engine: Engine, statement: str, **values: Any) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement), values)


def test_migrations_go_up_down_and_up_and_match_the_tables(engine: Engine) -> None:
    commands.check(engine)
    commands.downgrade(engine)
    left = scalar(
        engine,
        "SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'alembic_version'",
    )
    assert left == 0
    commands.upgrade(engine)
    commands.check(engine)


def test_a_job_is_stored_and_read_back_whole(engine: Engine, new_job: JobMaker) -> None:
    job = new_job(
        metadata={"ticket": "42"},
        webhook=Webhook("https://example.com/hook", ("job.succeeded",), "sealed"),
        not_before=clock.now() + timedelta(hours=1),
    )
    [accepted] = store(engine, job)
    assert accepted.created
    assert not accepted.announce, "a job that must wait is not announced"
    for name in ("id", "tenant_id", "kind", "model", "lane", "priority", "queue", "metadata", "webhook"):
        assert getattr(accepted.job, name) == getattr(job, name)
    assert accepted.job.request == job.request
    assert accepted.job.not_before == job.not_before


def test_the_same_key_and_payload_answer_the_same_job(engine: Engine, new_job: JobMaker) -> None:
    first, again = (new_job(idempotency_key="k", payload_hash=b"same") for _ in range(2))
    accepted, repeated = store(engine, first, again)
    assert (accepted.created, repeated.created) == (True, False)
    assert repeated.job.id == first.id
    assert not repeated.announce


def test_the_same_key_with_another_payload_conflicts(engine: Engine, new_job: JobMaker) -> None:
    store(engine, new_job(idempotency_key="k", payload_hash=b"one"))
    with pytest.raises(intake.IdempotencyConflict):
        store(engine, new_job(idempotency_key="k", payload_hash=b"two"))
    assert scalar(engine, "SELECT count(*) FROM jobs") == 1


def test_announcements_stop_at_the_window_and_do_not_overtake_what_waits(
    engine: Engine, new_job: JobMaker
) -> None:
    announced = [a.announce for a in store(engine, *(new_job() for _ in range(5)), window=3)]
    assert announced == [True, True, True, False, False]
    claim(engine, *(row.id for row in waiting(engine)))
    [later] = store(engine, new_job(), window=3)
    assert later.announce, "everything before it was claimed"


def waiting(engine: Engine) -> Sequence[Any]:
    with engine.begin() as connection:
        return connection.execute(text("SELECT id FROM jobs WHERE status = 'queued'")).all()


def test_copy_stores_many_and_leaves_announcing_to_the_feeder(engine: Engine, new_job: JobMaker) -> None:
    jobs = [new_job(text=f"ticket {n} 你好", metadata={"n": str(n)}) for n in range(200)]
    with engine.begin() as connection:
        intake.insert_many(connection, jobs)
    assert scalar(engine, "SELECT count(*) FROM jobs WHERE announced_at IS NULL AND due_at IS NULL") == 200
    with engine.begin() as connection:
        found = reads.get(connection, jobs[7].tenant_id, jobs[7].id)
    assert found is not None
    assert found.request == jobs[7].request
    assert found.metadata == {"n": "7"}


def test_a_claim_raises_the_attempt_and_only_one_worker_gets_it(engine: Engine, new_job: JobMaker) -> None:
    jobs = [new_job() for _ in range(20)]
    store(engine, *jobs)
    ids = [job.id for job in jobs]
    barrier = threading.Barrier(4)

    def take(worker: str) -> list[Any]:
        barrier.wait()
        return claim(engine, *ids, worker=worker)

    with ThreadPoolExecutor(4) as pool:
        taken = [c for got in pool.map(take, ["a", "b", "c", "d"]) for c in got]
    assert sorted(c.id for c in taken) == sorted(ids)
    assert {c.attempt for c in taken} == {1}


@pytest.mark.parametrize("state", ["cancelled", "late", "early", "unknown"])
def test_what_may_not_run_is_not_claimed(engine: Engine, new_job: JobMaker, state: str) -> None:
    now = clock.now()
    job = new_job(
        deadline=now - timedelta(seconds=1) if state == "late" else now + timedelta(hours=1),
        not_before=now + timedelta(hours=1) if state == "early" else None,
    )
    if state != "unknown":
        store(engine, job)
    if state == "cancelled":
        with engine.begin() as connection:
            assert moves.cancel(connection, job.tenant_id, job.id)
    assert claim(engine, job.id) == []


def test_a_result_is_recorded_once_however_often_it_comes(engine: Engine, new_job: JobMaker) -> None:
    [job] = [new_job()]
    store(engine, job)
    claim(engine, job.id)
    assert record(engine, success(job.id)).ended == {(job.id, 1): Status.SUCCEEDED}
    assert record(engine, success(job.id, output="another")).ended == {}
    with engine.begin() as connection:
        detail = reads.detail(connection, job.tenant_id, job.id)
    assert detail is not None
    assert detail.result is not None
    assert detail.result["output"] == "Nine to five."
    assert [row["outcome"] for row in detail.latency] == ["succeeded"]


def test_a_worker_presumed_dead_cannot_overwrite_a_newer_attempt(engine: Engine, new_job: JobMaker) -> None:
    job = new_job()
    store(engine, job)
    claim(engine, job.id, worker="old", lease_s=-1)
    with engine.begin() as connection:
        assert [s.status for s in sweeps.lose_leases(connection)] == [Status.QUEUED]
    [second] = claim(engine, job.id, worker="new")
    assert (second.attempt, second.failures) == (2, 1)
    assert record(engine, success(job.id, attempt=1, output="stale")).ended == {}
    assert status_of(engine, job) is Status.RUNNING
    record(engine, success(job.id, attempt=2))
    rows = scalar(engine, "SELECT array_agg(outcome ORDER BY attempt) FROM latency_records")
    assert rows == ["lease_lost", "succeeded"]


def test_lost_leases_use_up_the_budget(engine: Engine, new_job: JobMaker) -> None:
    job = new_job(max_attempts=2, webhook=Webhook("https://example.com", ("job.failed",)))
    store(engine, job)
    for expected in (Status.QUEUED, Status.FAILED):
        claim(engine, job.id, lease_s=-1)
        with engine.begin() as connection:
            assert [s.status for s in sweeps.lose_leases(connection)] == [expected]
    assert scalar(engine, "SELECT error_code FROM jobs") == "lease_lost"
    assert scalar(engine, "SELECT count(*) FROM webhook_deliveries") == 1


def test_a_renewed_lease_holds_and_a_lost_one_is_told(engine: Engine, new_job: JobMaker) -> None:
    held, cancelled = new_job(), new_job()
    store(engine, held, cancelled)
    claim(engine, held.id, cancelled.id, lease_s=-1)
    with engine.begin() as connection:
        moves.cancel(connection, cancelled.tenant_id, cancelled.id)
        kept = claims.renew(connection, [(held.id, 1), (cancelled.id, 1), (new_id(), 1)], 10)
    assert kept == {(held.id, 1)}
    with engine.begin() as connection:
        assert sweeps.lose_leases(connection) == []


def test_a_handed_back_job_keeps_its_budget_and_its_attempt_rises(engine: Engine, new_job: JobMaker) -> None:
    job = new_job()
    store(engine, job)
    claim(engine, job.id)
    latency = LatencyRecord("shutdown", "warm")
    record(engine, Ending(job.id, 1, Move.HAND_BACK, latency, announced=True))
    [again] = claim(engine, job.id)
    assert (again.attempt, again.failures) == (2, 0)


def test_a_retry_waits_for_its_delay(engine: Engine, new_job: JobMaker) -> None:
    job = new_job()
    store(engine, job)
    claim(engine, job.id)
    latency = LatencyRecord("engine_error", "warm")
    record(engine, Ending(job.id, 1, Move.RETRY, latency, error_code="engine_error", delay_s=60))
    assert claim(engine, job.id) == []
    execute(engine, "UPDATE jobs SET due_at = now()")
    with engine.begin() as connection:
        assert sweeps.release_due(connection) == 1
        assert [p.id for p in feed.pick(connection, job.queue, 10)] == [job.id]
    [again] = claim(engine, job.id)
    assert (again.attempt, again.failures) == (2, 1)


@pytest.mark.parametrize("bad", ["a NUL \x00 byte", "a lone \ud800 surrogate"])
def test_a_value_postgres_refuses_writes_nothing(engine: Engine, new_job: JobMaker, bad: str) -> None:
    good, poor = new_job(), new_job()
    store(engine, good, poor)
    claim(engine, good.id, poor.id)
    with pytest.raises((DataError, UnicodeEncodeError)):
        record(engine, success(good.id), success(poor.id, output=bad))
    assert status_of(engine, good) is Status.RUNNING
    assert scalar(engine, "SELECT count(*) FROM results") == 0


def test_records_against_renewals_and_cancels_never_deadlock(engine: Engine, new_job: JobMaker) -> None:
    jobs = [new_job() for _ in range(300)]
    with engine.begin() as connection:
        intake.insert_many(connection, jobs)
    ids = [job.id for job in jobs]
    claim(engine, *ids)
    rounds = [ids[n : n + 30] for n in range(0, 300, 30)]

    def renew(order: list[uuid.UUID]) -> None:
        with engine.begin() as connection:
            claims.renew(connection, [(job_id, 1) for job_id in order], 10)

    def finish(order: list[uuid.UUID]) -> None:
        record(engine, *(success(job_id) for job_id in reversed(order)))

    with ThreadPoolExecutor(6) as pool:
        work = [pool.submit(renew, list(reversed(ids))) for _ in range(10)]
        work += [pool.submit(finish, part) for part in rounds]
        work += [pool.submit(renew, ids) for _ in range(10)]
        for done in work:
            done.result()
    assert scalar(engine, "SELECT count(*) FROM results") == 300


def test_cancel_and_redrive_move_only_from_where_they_may(engine: Engine, new_job: JobMaker) -> None:
    job = new_job(webhook=Webhook("https://example.com", ("job.failed", "job.succeeded")))
    store(engine, job)
    with engine.begin() as connection:
        assert moves.redrive(connection, job.tenant_id, job.id) is None
        assert moves.cancel(connection, new_id(), job.id) is None, "another tenant's"
    claim(engine, job.id)
    failure = Ending(job.id, 1, Move.FAIL, LatencyRecord("failed", "warm"), error_code="x", error_message="y")
    record(engine, failure)
    with engine.begin() as connection:
        assert moves.cancel(connection, job.tenant_id, job.id) is None
        assert moves.redrive(connection, job.tenant_id, job.id) is not None
        assert [p.id for p in feed.pick(connection, job.queue, 5)] == [job.id]
    [again] = claim(engine, job.id)
    assert (again.attempt, again.failures) == (2, 0), "the attempt rises through a redrive, the budget is new"
    record(engine, replace(failure, attempt=2))
    assert scalar(engine, "SELECT count(*) FROM webhook_deliveries WHERE event = 'job.failed'") == 2


def test_started_is_told_once_however_many_attempts(engine: Engine, new_job: JobMaker) -> None:
    job = new_job(webhook=Webhook("https://example.com", ("job.started", "job.succeeded")))
    store(engine, job)
    claim(engine, job.id)
    record(engine, Ending(job.id, 1, Move.HAND_BACK, LatencyRecord("shutdown", "warm")))
    claim(engine, job.id)
    assert record(engine, success(job.id, attempt=2)).deliveries == 1
    events = scalar(engine, "SELECT array_agg(event ORDER BY id) FROM webhook_deliveries")
    assert events == ["job.started", "job.succeeded"]


def test_passed_deadlines_expire_with_their_deliveries(engine: Engine, new_job: JobMaker) -> None:
    late = new_job(
        deadline=clock.now() - timedelta(seconds=1), webhook=Webhook("https://e.com", ("job.expired",))
    )
    store(engine, late, new_job())
    with engine.begin() as connection:
        assert [s.job_id for s in sweeps.expire(connection)] == [late.id]
    assert status_of(engine, late) is Status.EXPIRED
    assert scalar(engine, "SELECT event FROM webhook_deliveries") == "job.expired"


def test_the_feeder_is_fair_to_tenants_and_takes_the_nearest_deadlines(
    engine: Engine, new_job: JobMaker
) -> None:
    with engine.begin() as connection:
        other = tenants.create(connection, "small", None)
        assert other is not None
        big = [new_job(deadline=clock.now() + timedelta(hours=9 - n)) for n in range(8)]
        small = [new_job(tenant_id=other.id) for _ in range(2)]
        intake.insert_many(connection, [*big, *small])
        first = [p.id for p in feed.pick(connection, "warm.normal", 4)]
        rest = [p.id for p in feed.pick(connection, "warm.normal", 10)]
    assert set(first) == {big[7].id, big[6].id, small[0].id, small[1].id}
    assert rest == [job.id for job in reversed(big[:6])]


def test_lost_announcements_are_found_by_later_claims_with_a_backoff(
    engine: Engine, new_job: JobMaker
) -> None:
    lost, later = new_job(), new_job()
    store(engine, lost, later)
    claim(engine, later.id)
    with engine.begin() as connection:
        mark = sweeps.watermark(connection, "warm.normal")
        assert sweeps.lose_announcements(connection, "warm.normal", mark, backoff_s=60) == 0
        assert sweeps.lose_announcements(connection, "warm.normal", mark, backoff_s=0) == 1
        assert sweeps.lose_announcements(connection, "warm.normal", None, backoff_s=0) == 0
        assert [p.id for p in feed.pick(connection, "warm.normal", 9)] == [lost.id]
        assert sweeps.announced_queues(connection) == ["warm.normal"]


def test_deliveries_are_leased_bounded_by_receiver_and_settled_once(
    engine: Engine, new_job: JobMaker
) -> None:
    def hook(host: str) -> Webhook:
        return Webhook(f"https://{host}/x", ("job.cancelled",))

    jobs = [new_job(webhook=hook("slow.example")) for _ in range(5)] + [new_job(webhook=hook("b.example"))]
    store(engine, *jobs)
    with engine.begin() as connection:
        for job in jobs:
            moves.cancel(connection, job.tenant_id, job.id)
    with engine.begin() as connection:
        taken = deliveries.take_due(connection, 10, lease_s=30, per_host=2)
        assert sorted(d.host for d in taken) == ["b.example", "slow.example", "slow.example"]
        assert [d.host for d in deliveries.take_due(connection, 9, 30, 2, {"slow.example": 0})] == []
    done = deliveries.AttemptResult(taken[0].id, 1, clock.now(), 5.0, 200, None, delivered=True)
    with engine.begin() as connection:
        deliveries.settle(connection, done)
        deliveries.settle(connection, replace(done, delivered=False, status_code=500, error="late"))
    status = scalar(engine, "SELECT status FROM webhook_deliveries WHERE id = :id", id=taken[0].id)
    assert status == "delivered"


def test_keys_are_hashed_and_end_when_revoked(engine: Engine, tenant: tenants.Tenant) -> None:
    with engine.begin() as connection:
        key = tenants.create_key(connection, tenant.id)
        found = tenants.of_key(connection, key)
        assert found is not None
        assert found.id == tenant.id
        assert tenants.of_key(connection, key + "x") is None
        [info] = tenants.keys(connection)
        assert tenants.revoke_key(connection, info.id)
        assert tenants.of_key(connection, key) is None
    stored = scalar(engine, "SELECT string_agg(api_keys::text, '') FROM api_keys")
    assert key not in stored


def test_retention_forgets_old_ends_only(engine: Engine, new_job: JobMaker) -> None:
    old, young, open_ = new_job(), new_job(), new_job()
    store(engine, old, young, open_)
    claim(engine, old.id, young.id)
    record(engine, success(old.id), success(young.id))
    execute(engine, "UPDATE jobs SET finished_at = now() - interval '31 days' WHERE id = :id", id=old.id)
    with engine.begin() as connection:
        assert sweeps.forget(connection, age_s=30 * 86_400) == 1
    assert scalar(engine, "SELECT count(*) FROM jobs") == 2
    assert scalar(engine, "SELECT count(*) FROM results") == 1


def test_the_figures_of_the_lanes(engine: Engine, new_job: JobMaker) -> None:
    jobs = [new_job(), new_job(priority=0), new_job()]
    store(engine, *jobs)
    claim(engine, jobs[0].id, jobs[2].id)
    record(engine, success(jobs[0].id))
    with engine.begin() as connection:
        figures = lanes.figures(connection, ["hot", "warm", "cold"])
    warm = figures["warm"]
    assert warm.depth == {"urgent": 1, "normal": 0, "low": 0}
    assert (warm.running, warm.succeeded, warm.p50_ms, warm.p99_ms) == (1, 1, 12.5, 12.5)
    assert figures["hot"].p50_ms is None


def test_every_redrive_gives_the_time_that_the_job_had(engine: Engine, new_job: JobMaker) -> None:
    job = new_job(deadline=clock.now() + timedelta(hours=24))
    store(engine, job)
    for attempt in (1, 2, 3):
        claim(engine, job.id)
        record(engine, Ending(job.id, attempt, Move.FAIL, LatencyRecord("failed", "warm"), error_code="x"))
        execute(
            engine,
            "UPDATE jobs SET created_at = created_at - interval '9 days', deadline = deadline - interval"
            " '9 days', redriven_at = redriven_at - interval '9 days'",
        )
        with engine.begin() as connection:
            assert moves.redrive(connection, job.tenant_id, job.id)
        left = scalar(engine, "SELECT deadline - now() FROM jobs")
        assert timedelta(hours=23) < left < timedelta(hours=25)
    [again] = claim(engine, job.id)
    assert again.age_ms < 3_600_000, "what it took counts from the redrive"


def test_a_narrowed_list_is_the_whole_one_without_the_rest(engine: Engine, new_job: JobMaker) -> None:
    other = tenants.Tenant(new_id(), "other", None)
    for _ in range(2):
        store(engine, *(new_job(lane=lane, kind=kind) for lane, kind in product(LANES, Kind)))
        store(engine, new_job(tenant_id=other.id))
    execute(engine, "UPDATE jobs SET status = 'cancelled' WHERE abs(hashtext(id::text)) % 3 = 0")

    def listed(
        lane: str | None = None,
        status: str | None = None,
        kind: str | None = None,
        limit: int = 100,
        after: uuid.UUID | None = None,
    ) -> list[Job]:
        with engine.begin() as connection:
            return reads.listing(connection, whose, reads.Filter(lane, status, kind), limit, after)

    whose = new_job().tenant_id
    everything = listed()
    assert len(everything) == 2 * len(LANES) * len(Kind)
    for lane, status, kind in product((None, *LANES), (None, "queued", "cancelled"), (None, *Kind)):
        right = [
            job
            for job in everything
            if lane in (None, job.lane) and status in (None, job.status) and kind in (None, job.kind)
        ]
        assert listed(lane, status, kind) == right
        assert listed(lane, status, kind, limit=2) == right[:2]
        assert (
            listed(lane, status, kind, limit=2, after=everything[5].id)
            == [job for job in right if job.id < everything[5].id][:2]
        )
    whose = other.id
    assert len(listed()) == len(listed("warm")) == 2
