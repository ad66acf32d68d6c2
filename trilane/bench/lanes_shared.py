"""The case of one shared card: hot's latency while cold has work without end, and what cold gets done."""

from collections.abc import Sequence
from typing import Any

from jobs.domain.policies import Precision
from trilane.bench import lanes_plan
from trilane.bench.lanes_load import Arrival
from trilane.bench.lanes_replay import Served
from trilane.bench.lanes_report import busy_share, latency, over, per_s
from trilane.bench.lanes_run import Card, Runs
from workers.engines.sim_card import SharedCard

COLD_SHARE = 0.25  # of the card while hot computes too; else all of it

DEFINITION = (
    "cold keeps: its requests a second beside hot, over those it reaches alone on the card times the part of"
    " the time in which hot, alone, has no request there"
)


async def measure(runs: Runs, hot: Sequence[Arrival], cold: Sequence[Arrival]) -> dict[str, Any]:
    """Run hot alone, cold alone, and both, on one card; all have the limits of lanes that share.

    Where engines can have a part of a card, each lane has one of its own first, cold's with `COLD_SHARE` of
    the card. One engine for both lanes follows.
    """
    lanes = lanes_plan.policies(Precision.FP16, beside_fastest=True)
    fast, slow = {"hot": lanes["hot"]}, {"cold": lanes["cold"]}
    report: dict[str, Any] = {"definition": DEFINITION}
    if make := runs.engines.make_on_part:
        card = SharedCard()
        pair = [
            (fast, make(fast, 0, card.part(1 - COLD_SHARE))),
            (slow, make(slow, 1, card.part(COLD_SHARE))),
        ]
        report["two_engines"] = {"cold_share": COLD_SHARE, **await _compare(runs, pair, hot, cold)}
    report["one_engine"] = await _compare(runs, runs.cards([fast | slow]), hot, cold)
    return report


async def _compare(
    runs: Runs, cards: Sequence[Card], hot: Sequence[Arrival], cold: Sequence[Arrival]
) -> dict[str, Any]:
    async with runs.started(cards):
        alone = await runs.replay("shared card: hot alone", cards, hot)
        span_s = max(served.ended_at for served in alone)
        cold_alone = await runs.replay("shared card: cold alone", cards, (), backlog=cold, at_least_s=span_s)
        both = await runs.replay("shared card: both", cards, hot, backlog=cold)
    hot_beside = [served for served in both if not served.of_backlog]
    cold_beside = [served for served in both if served.of_backlog]
    until_s = max(served.ended_at for served in hot_beside)
    free = 1 - busy_share(alone, span_s)
    allowed_per_s = per_s(cold_alone, span_s) * free
    kept_per_s = per_s(cold_beside, until_s)
    return {
        "hot_alone": latency(alone),
        "hot_beside_cold": latency(hot_beside),
        "hot_p99_ratio": over(_p99(hot_beside), _p99(alone)),
        "hot_per_s": len(hot) / span_s,
        "hot_free": free,
        "cold_alone_per_s": per_s(cold_alone, span_s),
        "cold_allowed_per_s": allowed_per_s,
        "cold_per_s": kept_per_s,
        "cold_kept": over(kept_per_s, allowed_per_s),  # None: no time for a single one
    }


def _p99(served: Sequence[Served]) -> float | None:
    p99: float | None = latency(served)["total_ms"]["p99"]
    return p99
