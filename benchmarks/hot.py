"""The hot calls of the store: what a busy installation does all the time, and how many rows each may read."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Engine, text

from benchmarks.million import HUNG, HUNG_HOST, QUEUED, RECENT, RUNNING, WINDOW
from jobs.domain import clock
from jobs.domain.jobs import Move, NewJob, Webhook, new_id
from jobs.domain.lanes import LANES, Kind
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import FinishReason, Usage
from jobs.store import claims, deliveries, feed, intake, job_deliveries, lanes, moves, reads, records, sweeps
from jobs.store.deliveries import AttemptResult
from jobs.store.reads import Filter
from jobs.store.records import Answer, Ending

PAGE = 50
FEW = 8  # rows that a look-up by key may touch: the row, its index entries, its neighbours
QUEUE = "cold.low"  # where a batch of 50,000 waits


@dataclass(frozen=True)
class Hot:
    """One call of the store, and how many rows all of its scans may read together."""

    name: str
    may_read: int
    call: Callable[[Connection], Any]


class Sample:
    """Rows to work on."""

    def __init__(self, engine: Engine) -> None:
        with engine.begin() as connection:
            by_jobs = connection.execute(
                text("SELECT tenant_id, count(*) FROM jobs GROUP BY tenant_id ORDER BY 2 DESC")
            ).all()
            self.big, self.small = by_jobs[0].tenant_id, by_jobs[-1].tenant_id
            self.queued = _ids(
                connection,
                f"status = 'queued' AND queue = '{QUEUE}' AND due_at IS NULL"
                " AND announced_at IS NOT NULL AND deadline > now() ORDER BY ready_at",
            )
            self.running = _ids(connection, "status = 'running' AND lease_until > claimed_at")
            mine = f"tenant_id = '{self.big}' AND status ="
            self.waits = _ids(connection, f"{mine} 'queued'")[0]
            self.failed = _ids(connection, f"{mine} 'failed' ORDER BY id DESC")
            self.told = _ids(connection, f"{mine} 'succeeded' AND webhook_url IS NOT NULL ORDER BY id DESC")
            self.pending = connection.execute(
                text("SELECT id, attempts FROM webhook_deliveries WHERE status = 'pending' LIMIT 1")
            ).one()
            self.keyed = connection.execute(
                text(
                    "SELECT tenant_id, idempotency_key, payload_hash FROM jobs"
                    " WHERE idempotency_key IS NOT NULL LIMIT 1"
                )
            ).one()


def _ids(connection: Connection, condition: str) -> list[uuid.UUID]:
    return list(connection.execute(text(f"SELECT id FROM jobs WHERE {condition} LIMIT 64")).scalars())


def hot(sample: Sample) -> Iterator[Hot]:
    """Every hot call on these rows."""
    yield from _intake(sample)
    yield from _work(sample)
    yield from _control(sample)
    yield from _webhooks(sample)
    yield from _reads(sample)


def _intake(sample: Sample) -> Iterator[Hot]:
    key = sample.keyed
    yield Hot("intake.insert", WINDOW + FEW, lambda c: intake.insert(c, _job(sample.big), WINDOW))
    yield Hot(
        "intake.insert into a full queue",
        WINDOW + FEW,
        lambda c: intake.insert(c, _job(sample.big, QUEUE), WINDOW),
    )
    yield Hot(
        "intake.repeated",
        FEW,
        lambda c: intake.repeated(c, key.tenant_id, key.idempotency_key, key.payload_hash),
    )


def _work(sample: Sample) -> Iterator[Hot]:
    for n in (8, 64):
        yield from _group(sample, n)
    yield Hot("reads.cancelled", FEW * 8, lambda c: reads.cancelled(c, sample.running[:8]))


def _group(sample: Sample, n: int) -> Iterator[Hot]:
    # The running jobs are few: the planner may read all of them rather than look each one up.
    held = [(job_id, 1) for job_id in sample.running[:n]]
    endings = [_ending(job_id) for job_id in sample.running[:n]]
    yield Hot(f"claims.claim {n}", FEW * n, lambda c: claims.claim(c, sample.queued[:n], "w", 10))
    yield Hot(f"claims.renew {n}", FEW * n + RUNNING, lambda c: claims.renew(c, held, 10))
    yield Hot(f"records.record {n}", FEW * n + RUNNING, lambda c: records.record(c, endings))


def _control(sample: Sample) -> Iterator[Hot]:
    batch = FEW * WINDOW
    yield Hot("feed.ready_queues", FEW * 10, feed.ready_queues)
    yield Hot("feed.standing", WINDOW + FEW, lambda c: feed.standing(c, QUEUE, WINDOW))
    # Each of the 20 tenants gives its nearest deadlines, since one may have to fill the window alone.
    yield Hot("feed.pick", 20 * WINDOW + batch, lambda c: feed.pick(c, QUEUE, WINDOW // 2))
    yield Hot("sweeps.release_due", batch, sweeps.release_due)
    yield Hot("sweeps.lose_leases", batch, sweeps.lose_leases)
    yield Hot("sweeps.expire", batch, sweeps.expire)
    yield Hot("sweeps.announced_queues", FEW * 10, sweeps.announced_queues)
    yield Hot("sweeps.watermark", 100 + FEW, lambda c: sweeps.watermark(c, "hot.normal"))
    yield Hot(
        "sweeps.lose_announcements", batch, lambda c: sweeps.lose_announcements(c, QUEUE, clock.now(), 5)
    )
    yield Hot(
        "sweeps.lose_announcements of an empty queue",
        batch,
        lambda c: sweeps.lose_announcements(c, QUEUE, None, 5),
    )
    yield Hot("sweeps.mark_unannounced", FEW * 32, lambda c: sweeps.mark_unannounced(c, sample.queued[:32]))
    yield Hot("sweeps.forget", 12 * WINDOW, lambda c: sweeps.forget(c, 29 * 86_400))
    yield Hot("lanes.figures", QUEUED + RUNNING + 2 * RECENT, lambda c: lanes.figures(c, list(LANES)))


def _webhooks(sample: Sample) -> Iterator[Hot]:
    ended = AttemptResult(sample.pending.id, sample.pending.attempts, clock.now(), 9.0, 500, "x", False, 5.0)
    busy = {HUNG_HOST: 0}
    yield Hot("deliveries.take_due", 1_000, lambda c: deliveries.take_due(c, 16, 45, 4))
    yield Hot(
        "deliveries.take_due beside a hung receiver", 1_000, lambda c: deliveries.take_due(c, 16, 45, 4, busy)
    )
    yield Hot("deliveries.settle", FEW, lambda c: deliveries.settle(c, ended))
    yield Hot("deliveries.figures", HUNG + WINDOW, deliveries.figures)
    yield Hot("job_deliveries.of_job", FEW, lambda c: job_deliveries.of_job(c, sample.told[0]))


def _reads(sample: Sample) -> Iterator[Hot]:
    big = sample.big
    yield Hot("reads.get", FEW, lambda c: reads.get(c, big, sample.waits))
    yield Hot("reads.detail", FEW, lambda c: reads.detail(c, big, sample.told[0]))
    yield Hot("reads.ended 64", FEW * 64, lambda c: reads.ended(c, [*sample.queued[:32], *sample.told[:32]]))
    yield Hot("moves.cancel", FEW, lambda c: moves.cancel(c, big, sample.waits))
    yield Hot("moves.redrive", FEW, lambda c: moves.redrive(c, big, sample.failed[0]))
    now = clock.now()
    old = Filter(created_after=now - timedelta(days=20, minutes=5), created_before=now - timedelta(days=20))
    filters = {
        "": Filter(),
        " by lane": Filter(lane="cold"),
        " by status": Filter(status="failed"),
        " by a status that is rare": Filter(status="expired"),
        " by a status long ago": Filter(status="queued", created_before=now - timedelta(days=1)),
        " by kind": Filter(kind="report"),
        " by time": old,
        " by lane and status": Filter(lane="hot", status="expired"),
        " by kind and status": Filter(kind="report", status="failed"),
        " by a kind that the lane has none of": Filter(lane="cold", kind="chat"),
        " by a kind that the lane has none of, and status": Filter("cold", "succeeded", "chat"),
    }
    for name, wanted in filters.items():
        yield _listing(f"reads.listing{name}, big tenant", big, wanted)
        yield _listing(f"reads.listing{name}, small tenant", sample.small, wanted)
    yield Hot(
        "reads.listing, next page",
        20 * PAGE,
        lambda c: reads.listing(c, big, Filter(), PAGE, sample.failed[-1]),
    )


def _job(tenant: uuid.UUID, queue: str = "hot.urgent") -> NewJob:
    return NewJob(
        new_id(),
        tenant,
        Kind.CHAT,
        "a-model",
        queue.partition(".")[0],
        5,
        queue,
        {"messages": []},
        12,
        clock.now() + timedelta(hours=1),
        webhook=Webhook("https://a.example", ("job.succeeded",)),
    )


def _ending(job_id: uuid.UUID) -> Ending:
    answer = Answer("From nine to five.", FinishReason.STOP, Usage(12, 5))
    latency = LatencyRecord("succeeded", "hot", "w", total_ms=200.0, prompt_tokens=12, output_tokens=5)
    return Ending(job_id, 1, Move.SUCCEED, latency, answer)


def _listing(name: str, tenant: uuid.UUID, wanted: Filter) -> Hot:
    return Hot(name, 100 * PAGE, lambda c: reads.listing(c, tenant, wanted, PAGE))
