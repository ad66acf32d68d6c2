"""The lanes' benchmark: one mixed load through one queue, and through three lanes on the same cards."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jobs import settings as settings_module
from jobs.domain.lanes import LANES, Kind
from jobs.domain.policies import Precision
from trilane.bench import lanes_engines, lanes_load, lanes_plan, lanes_shared, virtual_time
from trilane.bench.lanes_load import Arrival
from trilane.bench.lanes_replay import Served
from trilane.bench.lanes_report import Figures, capacity_per_s, figures, over
from trilane.bench.lanes_run import Card, Runs, Watch
from workers.engines.sim_curves import LongWork

SIM = "sim"
SATURATED = "saturated"  # in the place of a load: everything is there from the start
REAL_SEED = 285  # of real engines' mix: its first 12 have the parts and lengths of all, a report amid them
EQUAL, OWN = "equal", "own"  # all lanes at one precision, or each at its own


def measure(
    engine: str,
    traces: Sequence[Path],
    *,
    requests: int,
    cards: int,
    loads: Sequence[float],
    sequences: int,
    shrink: int,
    long_work: LongWork,
    watch: Watch,
) -> dict[str, Any]:
    """Replay the first `requests` of `traces` (none: of the made-up mix) and return all figures.

    `loads` are parts of the single queue's measured capacity; the targets look at the first. Every length is
    divided by `shrink`. `long_work` is for simulated engines alone. Raises `UnreadableTrace`, `OSError`,
    `Refused` where an engine answers nothing of a replay, and as the engine does where it cannot be started.
    """
    simulated = engine == SIM
    seed = {} if simulated else {"seed": REAL_SEED}
    arrivals = lanes_load.read(traces, requests) if traces else lanes_load.mix(requests, **seed)
    arrivals = lanes_load.shrunk(arrivals, shrink)
    engines = lanes_engines.simulated(long_work)
    run: Callable[..., dict[str, Any]] = virtual_time.run
    if not simulated:
        longest = max(arrival.prompt_tokens + arrival.output_tokens for arrival in arrivals)
        engines, run = lanes_engines.real(engine, settings_module.load(), longest, cards), asyncio.run
    runs = Runs(engines, watch)
    report = run(_Comparison(runs, arrivals, cards, sequences).measure(loads, simulated=simulated))
    return {
        "engine": engine,
        "traces": [path.name for path in traces] or ["mix"],
        "shrink": shrink,
        "long_work": long_work.value if simulated else None,
        "cards": cards,
        "work": [_part(arrivals, kind) for kind in Kind],
        **report,
        "failures": [asdict(failure) for failure in runs.failures],
        "targets": _targets(report["ratio"]) if simulated else {},  # they were set for that
    }


def _part(arrivals: Sequence[Arrival], kind: Kind) -> dict[str, Any]:
    of_kind = [arrival for arrival in arrivals if arrival.kind is kind]
    n = max(len(of_kind), 1)
    return {
        "kind": kind.value,
        "requests": len(of_kind),
        "mean_prompt_tokens": sum(arrival.prompt_tokens for arrival in of_kind) / n,
        "mean_output_tokens": sum(arrival.output_tokens for arrival in of_kind) / n,
    }


class _Comparison:
    """One load through both designs."""

    def __init__(self, runs: Runs, arrivals: Sequence[Arrival], cards: int, sequences: int) -> None:
        self._runs, self._arrivals, self._cards = runs, arrivals, cards
        self._single_policy = lanes_plan.single(sequences)
        self._rows: list[Figures] = []
        self._capacity_per_s = 0.0

    async def measure(self, loads: Sequence[float], *, simulated: bool) -> dict[str, Any]:
        """All of it; only simulated engines have several precisions, and divide a card."""
        hot_alone = await self._single(loads)
        plans = {EQUAL: await self._lanes(EQUAL, Precision.FP16, loads)}
        if simulated:
            plans[OWN] = await self._lanes(OWN, None, loads)
        shared = await self._shared_card(loads[0])
        return {
            "single_capacity_per_s": self._capacity_per_s,
            "plans": plans,
            "rows": self._rows,
            "hot_alone": hot_alone,
            "shared_card": shared,
            "ratio": self._ratio(loads[0], hot_alone) | _shared_ratio(shared),
        }

    async def _single(self, loads: Sequence[float]) -> Figures:
        """The one queue; returns hot's figures alone on all its cards."""
        workers = [{lanes_plan.SINGLE: self._single_policy}] * self._cards
        async with self._runs.started(self._runs.cards(workers)) as cards:
            served = await self._row("single", EQUAL, SATURATED, cards)
            self._capacity_per_s = capacity_per_s(served)
            for load in loads:
                await self._row("single", EQUAL, load, cards)
            hot = self._of_kind(Kind.CHAT, loads[0])
            served = await self._runs.replay("hot alone", cards, hot)
        return figures(served, self._cards)["kinds"][Kind.CHAT.value] if hot else {}

    async def _lanes(self, name: str, precision: Precision | None, loads: Sequence[float]) -> Figures:
        """The three lanes; returns the cards that they got and, where that decided on them, their work."""
        plan: Figures = {}
        need = dict.fromkeys(LANES, 0.0)
        if self._cards > min(2, len({arrival.lane for arrival in self._arrivals})):
            work = await self._work(name, precision)
            span_s = self._at(loads[0])[-1].at_s
            need = {lane: card_s / span_s for lane, card_s in work.items()}
            plan = {"work_card_s": work, "need_cards": need}
        assigned = lanes_plan.assign(need, self._cards, alike=precision is not None)
        policies = lanes_plan.policies(precision)
        workers = [{lane: policies[lane] for lane in lanes} for lanes in assigned]
        async with self._runs.started(self._runs.cards(workers)) as cards:
            await self._row("lanes", name, SATURATED, cards)
            for load in loads:
                await self._row("lanes", name, load, cards)
        return plan | {"cards": ["+".join(lanes) for lanes in assigned]}

    async def _work(self, name: str, precision: Precision | None) -> dict[str, float]:
        """Each lane's work: the seconds that one card with its engine needs for all of its requests."""
        work = {}
        for lane, policy in lanes_plan.policies(precision).items():
            arrivals = [each for each in lanes_load.at_once(self._arrivals) if each.lane == lane]
            async with self._runs.started(self._runs.cards([{lane: policy}])) as cards:
                served = await self._runs.replay(f"{lane}'s work, {name} precision", cards, arrivals)
            work[lane] = max((each.ended_at for each in served), default=0.0)
        return work

    async def _row(
        self, queue: str, precision: str, load: float | str, cards: Sequence[Card]
    ) -> list[Served]:
        arrivals = lanes_load.at_once(self._arrivals) if isinstance(load, str) else self._at(load)
        served = await self._runs.replay(f"{queue}, {precision} precision, load {load}", cards, arrivals)
        found = figures(served, self._cards)
        self._rows.append({"queue": queue, "precision": precision, "load": load, **found})
        return served

    async def _shared_card(self, load: float) -> dict[str, Any]:
        """Hot at one card's part of the load, and as much cold work as there can be."""
        hot = self._of_kind(Kind.CHAT, load)
        cold = [arrival for arrival in self._arrivals if arrival.lane == list(LANES)[-1]]
        if not cold or not hot or not hot[-1].at_s:  # no rate either
            return {}
        thinned = lanes_load.at_rate(hot, len(hot) / hot[-1].at_s / self._cards)
        return await lanes_shared.measure(self._runs, thinned, cold)

    def _at(self, load: float) -> list[Arrival]:
        return lanes_load.at_rate(self._arrivals, load * self._capacity_per_s)

    def _of_kind(self, kind: Kind, load: float) -> list[Arrival]:
        return [arrival for arrival in self._at(load) if arrival.kind is kind]

    def _ratio(self, load: float, hot_alone: Figures) -> dict[str, float]:
        """The lanes over the single queue, at equal precision; none can beat hot alone on all cards."""
        rows = {(row["queue"], row["load"]): row for row in self._rows if row["precision"] == EQUAL}
        single, lanes = rows["single", load], rows["lanes", load]
        card_s = "card_seconds_per_request"
        single_ms = _hot_p99(single)
        return _known(
            card_seconds=over(lanes[card_s], single[card_s]),
            card_seconds_saturated=over(rows["lanes", SATURATED][card_s], rows["single", SATURATED][card_s]),
            hot_p99=over(_hot_p99(lanes), single_ms),
            hot_alone_p99=over(_p99(hot_alone), single_ms),
        )


def _hot_p99(row: Figures) -> float | None:
    return _p99(row["kinds"].get(Kind.CHAT.value))


def _p99(figures: Figures | None) -> float | None:
    return figures["total_ms"]["p99"] if figures else None


def _shared_ratio(shared: Mapping[str, Any]) -> dict[str, float]:
    found = shared.get("two_engines") or shared.get("one_engine") or {}
    return _known(shared_hot_p99=found.get("hot_p99_ratio"), shared_cold_kept=found.get("cold_kept"))


def _known(**ratios: float | None) -> dict[str, float]:
    return {name: ratio for name, ratio in ratios.items() if ratio is not None}


# What is to be reached, of the ratios of a load that has the kinds for them.
BELOW: Mapping[str, float] = {
    "hot_p99": 0.42,
    "card_seconds": 0.66,
    "card_seconds_saturated": 0.66,
    "shared_hot_p99": 1.5,
}
ABOVE: Mapping[str, float] = {"shared_cold_kept": 0.8}


def _targets(ratio: Mapping[str, float]) -> dict[str, bool]:
    below = {f"ratio.{name} < {bound}": ratio[name] < bound for name, bound in BELOW.items() if name in ratio}
    above = {f"ratio.{name} > {bound}": ratio[name] > bound for name, bound in ABOVE.items() if name in ratio}
    return below | above
