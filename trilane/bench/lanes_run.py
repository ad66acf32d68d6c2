"""Runs replays one after another on engines that are started for them."""

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from trilane.bench.lanes_engines import Make
from trilane.bench.lanes_load import Arrival
from trilane.bench.lanes_plan import SINGLE, Lanes
from trilane.bench.lanes_replay import Replay, Served, Worker
from workers.engines.seam import Engine

Watch = Callable[[str, int], Callable[[], None]]  # a stage and its requests -> called at the end of each
Card = tuple[Lanes, Engine]


class Runs:
    """What all replays of a benchmark share: how engines are made, the prompts' numbers, who watches."""

    def __init__(self, make: Make, watch: Watch) -> None:
        self.make, self._watch = make, watch
        self._numbers = itertools.count()

    @asynccontextmanager
    async def started(self, cards: Sequence[Card]) -> AsyncIterator[Sequence[Card]]:
        """These cards with their engines started; they are stopped at the end."""
        for _, engine in cards:
            await engine.start()
        try:
            yield cards
        finally:
            for _, engine in cards:
                await engine.stop()

    def cards(self, lanes: Sequence[Lanes]) -> list[Card]:
        """A card for each of these workers' lanes."""
        return [(each, self.make(each, number)) for number, each in enumerate(lanes)]

    async def replay(
        self,
        stage: str,
        cards: Sequence[Card],
        arrivals: Sequence[Arrival],
        *,
        backlog: Sequence[Arrival] = (),
        at_least_s: float = 0.0,
    ) -> list[Served]:
        """Let `arrivals` come to workers on these cards; see `Replay.run`."""
        workers = [Worker(lanes, engine) for lanes, engine in cards]
        one_queue = all(SINGLE in lanes for lanes, _ in cards)
        replay = Replay(
            workers,
            (lambda arrival: SINGLE) if one_queue else (lambda arrival: arrival.lane),
            self._numbers,
            self._watch(stage, len(arrivals)),
        )
        return await replay.run(arrivals, backlog=backlog, at_least_s=at_least_s)
