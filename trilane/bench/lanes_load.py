"""The mixed load of the lanes' benchmark: request traces, or a made-up mix, as arrivals in time."""

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TextIO

from jobs.domain.lanes import LANES, Kind, lane_of_length, route

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

# The mix: kind, its part of the requests, the range of its prompt and of its answer. The lengths are those
# that the lanes are made for; the parts are made up.
MIX = (
    (Kind.CHAT, 0.6, (50, 200), (50, 200)),
    (Kind.TICKET, 0.3, (600, 2_000), (100, 300)),
    (Kind.REPORT, 0.1, (3_000, 8_000), (200, 500)),
)


class UnreadableTrace(ValueError):
    """A file that is no trace; the message names it, the line and what is wrong."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request: when it comes (seconds from the start), its kind, its prompt's and its answer's tokens."""

    at_s: float
    kind: Kind
    prompt_tokens: int
    output_tokens: int

    @property
    def lane(self) -> str:
        """The lane that Trilane routes it to."""
        return route(LANES, self.kind, self.prompt_tokens, self.output_tokens)


def read(paths: Sequence[Path], limit: int) -> list[Arrival]:
    """The first `limit` requests of the traces, laid over each other so that all begin together.

    Each file has a header and the columns `COLUMNS`, as the Azure LLM inference traces have. A request's kind
    follows from its prompt's length. Raises `UnreadableTrace`, or `OSError` for a file that is not there.
    """
    arrivals: list[Arrival] = []
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            arrivals += _read_one(path, file)
    arrivals = sorted(arrivals, key=lambda arrival: arrival.at_s)[:limit]
    if not arrivals[-1].at_s:
        raise UnreadableTrace(f"{paths[0]}: all requests come at the same time: there is no rate to replay")
    return arrivals


def _read_one(path: Path, file: TextIO) -> list[Arrival]:
    reader = csv.DictReader(file)
    try:
        rows = [
            (datetime.fromisoformat(row[COLUMNS[0]]), int(row[COLUMNS[1]]), int(row[COLUMNS[2]]))
            for row in reader
        ]
    except (KeyError, TypeError, ValueError) as error:
        wanted = ", ".join(COLUMNS)
        raise UnreadableTrace(
            f"{path}, line {reader.line_num}: {error}: a trace has the columns {wanted}"
        ) from error
    if not rows:
        raise UnreadableTrace(f"{path}: the trace is empty")
    start = min(at for at, _, _ in rows)
    return [
        Arrival((at - start).total_seconds(), kind_of(prompt), max(prompt, 1), max(output, 1))
        for at, prompt, output in rows
    ]


def kind_of(prompt_tokens: int) -> Kind:
    """The kind whose own lane takes prompts of this length."""
    (kind,) = LANES[lane_of_length(LANES, prompt_tokens)].kinds
    return kind


def mix(n: int, seed: int = 11) -> list[Arrival]:
    """`n` requests as `MIX` says, lengths drawn evenly from their ranges, arrivals at random (Poisson)."""
    draw = random.Random(seed)  # noqa: S311 - a load, not a secret
    at_s = 0.0
    arrivals = []
    for _ in range(n):
        at_s += draw.expovariate(1.0)
        ((kind, _, prompt, answer),) = draw.choices(MIX, weights=[part for _, part, _, _ in MIX])
        arrivals.append(Arrival(at_s, kind, draw.randint(*prompt), draw.randint(*answer)))
    return arrivals


def at_rate(arrivals: Sequence[Arrival], per_s: float) -> list[Arrival]:
    """The same requests, their pattern in time stretched to `per_s` requests a second on average."""
    factor = len(arrivals) / per_s / arrivals[-1].at_s
    return [replace(arrival, at_s=arrival.at_s * factor) for arrival in arrivals]


def at_once(arrivals: Sequence[Arrival]) -> list[Arrival]:
    """The same requests, all there from the start, in their order."""
    return [replace(arrival, at_s=0.0) for arrival in arrivals]


def shrunk(arrivals: Sequence[Arrival], factor: int) -> list[Arrival]:
    """The same requests with a `factor`th of their tokens (at least 1), their kinds as they were."""
    return [
        replace(
            arrival,
            prompt_tokens=max(arrival.prompt_tokens // factor, 1),
            output_tokens=max(arrival.output_tokens // factor, 1),
        )
        for arrival in arrivals
    ]
