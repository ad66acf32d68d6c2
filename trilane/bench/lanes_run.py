"""Runs replays one after another on engines that are started for them."""

import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trilane.bench import lanes_engines
from trilane.bench.lanes_engines import Engines
from trilane.bench.lanes_load import Arrival
from trilane.bench.lanes_plan import SINGLE, Lanes
from trilane.bench.lanes_prompts import Refused
from trilane.bench.lanes_replay import Replay, Served, Worker
from workers.engines.seam import Engine

Watch = Callable[[str, int], Callable[[], None]]  # a stage and its requests -> called at the end of each
Card = tuple[Lanes, Engine]


@dataclass(frozen=True, slots=True)
class Failure:
    """Requests of one replay that failed alike; the message is the first one's."""

    stage: str
    code: str
    message: str
    requests: int


class Runs:
    """What all replays of a benchmark share: how engines are made, the prompts, who watches, what failed."""

    def __init__(self, engines: Engines, watch: Watch) -> None:
        self.engines, self._prompts, self._watch = engines, engines.prompts, watch
        self._numbers = itertools.count()
        self.failures: list[Failure] = []

    @asynccontextmanager
    async def started(self, cards: Sequence[Card]) -> AsyncIterator[Sequence[Card]]:
        """These cards with their engines started; they are stopped at the end. Raises as the engines do."""
        started = self._watch("starting engines", len(cards))
        try:
            for lanes, engine in cards:
                await engine.start()
                if self.engines.measured:
                    self._prompts = await self._prompts.measured(engine, lanes_engines.places(lanes))
                started()
            yield cards
        finally:
            for _, engine in cards:
                await engine.stop()

    def cards(self, lanes: Sequence[Lanes]) -> list[Card]:
        """A card for each of these workers' lanes."""
        return [(each, self.engines.make(each, number)) for number, each in enumerate(lanes)]

    async def replay(
        self,
        stage: str,
        cards: Sequence[Card],
        arrivals: Sequence[Arrival],
        *,
        backlog: Sequence[Arrival] = (),
        at_least_s: float = 0.0,
    ) -> list[Served]:
        """Let `arrivals` come to workers on these cards; see `Replay.run`. Raises `Refused` if all fail."""
        workers = [Worker(lanes, engine) for lanes, engine in cards]
        one_queue = all(SINGLE in lanes for lanes, _ in cards)
        replay = Replay(
            workers,
            (lambda arrival: SINGLE) if one_queue else (lambda arrival: arrival.lane),
            self._numbers,
            self._prompts,
            self._watch(stage, len(arrivals)),
        )
        served = await replay.run(arrivals, backlog=backlog, at_least_s=at_least_s)
        self._note_failures(stage, served)
        return served

    def _note_failures(self, stage: str, served: Sequence[Served]) -> None:
        failed = [each.failure for each in served if each.failure]
        messages = dict(reversed(failed))
        for code, requests in Counter(code for code, _ in failed).items():
            self.failures.append(Failure(stage, code, messages[code], requests))
        if failed and len(failed) == len(served):
            raise Refused(f"{stage}: all {len(failed)} requests failed: {': '.join(failed[0])}")
