"""The pipeline's benchmark: Trilane and a plain Celery design on the same servers, in turns."""

import statistics
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from jobs import settings as settings_module
from jobs.broker import Announcer
from jobs.domain.lanes import Kind
from producer import Client
from trilane.bench import measures, plain_celery
from trilane.bench.measures import Drained
from trilane.bench.rig import Rig, Say, servers
from workers.feed import Feeder

LANE = "hot"
CONCURRENCY = 64  # the lane's limit, and the plain worker's threads
PLAIN_THREADS = (CONCURRENCY, 16)  # the plain design shows whichever drains faster
SINGLES = 1_000  # submitted one by one: no more than one feed window takes
MAX_TOKENS = 16
_ENGINE = '{"time_scale": 0}'


@dataclass(frozen=True, slots=True)
class Ours:
    """Trilane in one round."""

    ingest_single_per_s: float
    ingest_bulk_per_s: float
    drain: Drained
    drain_bulk: Drained
    overhead_ms: dict[str, float]
    results: int  # of the N jobs of each drain, the fewer
    lost: int
    duplicates: int


@dataclass(frozen=True, slots=True)
class Plain:
    """The plain design in one round."""

    threads: int
    publish_per_s: float
    drain: Drained
    overhead_ms: dict[str, float]


def measure(n: int, repeats: int, say: Say) -> dict[str, Any]:
    """Run `repeats` rounds of `n` jobs a drain and return the medians, the checks and the rounds."""
    rounds: list[tuple[Ours, Plain]] = []
    with servers(say, {LANE: {"limit": CONCURRENCY}}) as rig:
        rig.sql(plain_celery.CREATE_TABLE)
        for number in range(repeats):
            say(f"round {number + 1} of {repeats}")
            # Each design goes first in every other round.
            if number % 2:
                plain, ours = _plain(rig, n), _ours(rig, n)
            else:
                ours, plain = _ours(rig, n), _plain(rig, n)
            rounds.append((ours, plain))
    return _report(n, rounds)


# --- the two designs --------------------------------------------------------------------------------


def _prompt(i: int) -> str:
    return f"A customer asks for the third time where parcel {i} is. Answer kindly, in two sentences."


def _ours(rig: Rig, n: int) -> Ours:
    client = Client(settings=rig.settings)
    singles = min(n, SINGLES)

    def submit(i: int) -> str:
        return client.enqueue(Kind.CHAT, _prompt(i), max_tokens=MAX_TOKENS)

    requests = [{"kind": "chat", "prompt": _prompt(i), "max_tokens": MAX_TOKENS} for i in range(n)]
    client.submit_many(requests[:1])  # connections, tenant and tokenizer
    _empty(rig, "jobs")
    single_per_s = measures.rate(singles, lambda: [submit(i) for i in range(singles)])
    rig.say(f"trilane: {single_per_s:,.0f}/s submitted one by one")
    client.submit_many(requests[singles:])
    _announce_one_by_one(rig, n)
    with rig.worker(LANE, "sim", TRILANE_ENGINE__OPTIONS=_ENGINE) as worker:
        drain = measures.drained(rig, "results", n, worker)
        rig.say(f"trilane: {drain.per_s:,.0f}/s drained, one id a message")
        checks = [_check(rig, n)]
        _empty(rig, "jobs")
        bulk_per_s = measures.rate(n, lambda: client.submit_many(requests))
        rig.say(f"trilane: {bulk_per_s:,.0f}/s submitted in bulk")
        with rig.process("control", "trilane", "control"):
            drain_bulk = measures.drained(rig, "results", n, worker)
            rig.say(f"trilane: {drain_bulk.per_s:,.0f}/s drained in bulk")
            checks.append(_check(rig, n))
            _empty(rig, "jobs")
            overhead = measures.added_latency_ms(rig, "results", lambda: submit(n))
            rig.say(f"trilane: {overhead['p50']:.1f} ms added (P50), {overhead['p99']:.1f} ms (P99)")
            checks.append(_check(rig, measures.OVERHEAD_JOBS))
    client.close()
    lost, duplicates = map(sum, zip(*checks, strict=True))
    fewest = min(drain.rows, drain_bulk.rows)
    return Ours(single_per_s, bulk_per_s, drain, drain_bulk, overhead, fewest, lost, duplicates)


def _announce_one_by_one(rig: Rig, n: int) -> None:
    """Have the feeder announce what stands beyond its usual window, one id a message."""
    settings = settings_module.load(
        database_url=rig.settings.database_url,
        redis_url=rig.settings.redis_url,
        feed={"window": 2 * n + 1, "message_ids": 1},
    )
    announcer = Announcer(settings)
    Feeder(settings, rig.database, announcer).step()
    announcer.close()


def _check(rig: Rig, n: int) -> tuple[int, int]:
    """How many of `n` jobs have no result, and how many attempts there were beyond each job's first."""
    answered = rig.sql("SELECT count(*) FROM results JOIN jobs ON id = job_id WHERE status = 'succeeded'")
    repeated = rig.sql("SELECT coalesce(sum(attempt) - count(*), 0)::int FROM jobs WHERE attempt > 0")
    return n - answered, repeated


def _plain(rig: Rig, n: int) -> Plain:
    tried = [_plain_at(rig, n, threads) for threads in PLAIN_THREADS]
    return max(tried, key=lambda plain: plain.drain.per_s)


def _plain_at(rig: Rig, n: int, threads: int) -> Plain:
    app = plain_celery.create_app(rig.settings, threads)
    generate = app.tasks["generate"]

    def publish(i: int) -> str:
        job_id = str(uuid.uuid4())
        generate.delay(job_id, _prompt(i), MAX_TOKENS)
        return job_id

    publish(0)  # connections
    app.control.purge()
    _empty(rig, "plain_results")
    publish_per_s = measures.rate(n, lambda: [publish(i) for i in range(n)])
    rig.say(f"plain Celery, {threads} threads: {publish_per_s:,.0f}/s published")
    with rig.process("plain", "trilane.bench.plain_celery", str(threads)) as worker:
        drain = measures.drained(rig, "plain_results", n, worker)
        rig.say(f"plain Celery, {threads} threads: {drain.per_s:,.0f}/s drained")
        _empty(rig, "plain_results")
        overhead = measures.added_latency_ms(rig, "plain_results", lambda: publish(n))
        rig.say(
            f"plain Celery, {threads} threads: {overhead['p50']:.1f} ms added (P50),"
            f" {overhead['p99']:.1f} ms (P99)"
        )
    app.close()
    return Plain(threads, publish_per_s, drain, overhead)


def _empty(rig: Rig, table: str) -> None:
    rig.sql(f"TRUNCATE {table} CASCADE")


# --- the report -------------------------------------------------------------------------------------


def _report(n: int, rounds: list[tuple[Ours, Plain]]) -> dict[str, Any]:
    def median(of: Callable[[Ours, Plain], float]) -> float:
        return round(statistics.median(of(ours, plain) for ours, plain in rounds), 3)

    def percentiles(of: Callable[[Ours, Plain], Mapping[str, float]]) -> dict[str, float]:
        found = [of(ours, plain) for ours, plain in rounds]
        return {name: round(statistics.median(each[name] for each in found), 3) for name in found[0]}

    report: dict[str, Any] = {
        "jobs": n,
        "repeats": len(rounds),
        "concurrency": CONCURRENCY,
        "ingest_single_per_s": median(lambda o, p: o.ingest_single_per_s),
        "ingest_bulk_per_s": median(lambda o, p: o.ingest_bulk_per_s),
        "drain_per_s": median(lambda o, p: o.drain.per_s),
        "drain_bulk_per_s": median(lambda o, p: o.drain_bulk.per_s),
        "overhead_ms": percentiles(lambda o, p: o.overhead_ms),
        "results": min(ours.results for ours, _ in rounds),
        "lost": sum(ours.lost for ours, _ in rounds),
        "duplicates": sum(ours.duplicates for ours, _ in rounds),
        "worker_rss_mb": max(max(o.drain.rss_mb, o.drain_bulk.rss_mb) for o, _ in rounds),
        "plain_celery": {
            "publish_per_s": median(lambda o, p: p.publish_per_s),
            "drain_per_s": median(lambda o, p: p.drain.per_s),
            "overhead_ms": percentiles(lambda o, p: p.overhead_ms),
        },
        "ratio": {
            "drain": median(lambda o, p: o.drain.per_s / p.drain.per_s),
            "drain_bulk": median(lambda o, p: o.drain_bulk.per_s / p.drain.per_s),
        },
    }
    report["targets"] = {name: met(report) for name, met in TARGETS.items()}
    report["rounds"] = [{"trilane": asdict(ours), "plain_celery": asdict(plain)} for ours, plain in rounds]
    return report


TARGETS: Mapping[str, Callable[[Mapping[str, Any]], bool]] = {
    "ingest_bulk_per_s >= 5000": lambda report: report["ingest_bulk_per_s"] >= 5_000,
    "ratio.drain >= 1.0": lambda report: report["ratio"]["drain"] >= 1.0,
    "ratio.drain_bulk >= 3.0": lambda report: report["ratio"]["drain_bulk"] >= 3.0,
    "overhead_ms.p50 <= 25": lambda report: report["overhead_ms"]["p50"] <= 25,
    "overhead_ms.p99 <= 100": lambda report: report["overhead_ms"]["p99"] <= 100,
    "lost == 0": lambda report: report["lost"] == 0,
    "duplicates == 0": lambda report: report["duplicates"] == 0,
}
