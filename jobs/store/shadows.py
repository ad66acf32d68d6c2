"""Shadows: copies of ended jobs on another lane, whose answers are compared and then forgotten."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text

from jobs.domain.agreement import Comparison

WINDOW_S = 86_400  # what the figures are of


@dataclass(frozen=True, slots=True)
class Original:
    """An ended job that can be shadowed."""

    id: uuid.UUID
    kind: str
    model: str
    request: dict[str, Any]
    prompt_tokens: int
    prefix: int


@dataclass(frozen=True, slots=True)
class Pair:
    """A job and its shadow, both ended; the texts in (reference, candidate) order, None without an answer."""

    job_id: uuid.UUID
    shadow_id: uuid.UUID
    reference: str | None
    candidate: str | None


@dataclass(frozen=True, slots=True)
class ShadowFigures:
    """How one lane's answers agree with its reference's, over the last day. Shares between 0 and 1."""

    lane: str
    reference: str
    compared: int
    failed: int
    exact: float
    agreement: float


# Greedy answers alone: others differ by chance, whatever the precision.
_ORIGINALS = text(
    """
    SELECT id, kind, model, request, prompt_tokens, prefix FROM jobs
    WHERE finished_at > :since AND lane = :lane AND status = 'succeeded' AND tenant_id <> :tenant_id
    AND (request #>> '{sampling,temperature}')::float8 = 0
    AND prompt_tokens + (request #>> '{sampling,max_tokens}')::int <= :room
    AND random() < :share
    ORDER BY finished_at LIMIT :n
    """
)
_ENDED = text(
    """
    SELECT p.job_id, p.shadow_id, theirs.output AS reference, ours.output AS candidate
    FROM precision_shadows p
    LEFT JOIN jobs s ON s.id = p.shadow_id
    LEFT JOIN results theirs ON theirs.job_id = p.shadow_id
    LEFT JOIN results ours ON ours.job_id = p.job_id
    WHERE p.compared_at IS NULL AND (s.id IS NULL OR s.finished_at IS NOT NULL)
    """
)
_FIGURES = text(
    """
    SELECT lane, reference, count(*) FILTER (WHERE tokens IS NOT NULL) AS compared,
           count(*) FILTER (WHERE tokens IS NULL) AS failed,
           coalesce(avg(exact::int), 0)::float8 AS exact,
           coalesce(sum(agreed)::float8 / nullif(sum(tokens), 0), 1) AS agreement
    FROM precision_shadows WHERE compared_at > now() - make_interval(secs => :window_s)
    GROUP BY lane, reference ORDER BY lane, reference
    """
)


def now(connection: Connection) -> datetime:
    """The database's time."""
    moment: datetime = connection.execute(text("SELECT now()")).scalar_one()
    return moment


def under_way(connection: Connection) -> int:
    """Shadows that are not compared yet."""
    count: int = connection.execute(
        text("SELECT count(*) FROM precision_shadows WHERE compared_at IS NULL")
    ).scalar_one()
    return count


def originals(
    connection: Connection,
    lane: str,
    share: float,
    *,
    since: datetime,
    tenant_id: uuid.UUID,
    room: int,
    n: int,
) -> list[Original]:
    """Up to `n` of the lane's jobs that succeeded after `since`, each with the probability `share`.

    Only greedy ones (temperature 0) that need at most `room` tokens, and none of the shadows' tenant.
    """
    values = {"lane": lane, "share": share, "since": since, "tenant_id": tenant_id, "room": room, "n": n}
    return [Original(**row._mapping) for row in connection.execute(_ORIGINALS, values)]


def begin(connection: Connection, job_id: uuid.UUID, shadow_id: uuid.UUID, lane: str, reference: str) -> None:
    """Note that `shadow_id` repeats `job_id` on the reference lane."""
    connection.execute(
        text(
            "INSERT INTO precision_shadows (job_id, shadow_id, lane, reference)"
            " VALUES (:job_id, :shadow_id, :lane, :reference)"
        ),
        {"job_id": job_id, "shadow_id": shadow_id, "lane": lane, "reference": reference},
    )


def ended(connection: Connection) -> list[Pair]:
    """The pairs that can be compared now."""
    return [Pair(**row._mapping) for row in connection.execute(_ENDED)]


def compared(connection: Connection, pair: Pair, comparison: Comparison | None) -> None:
    """Keep what a comparison found (None: one side has no answer), and forget the shadow's job."""
    connection.execute(
        text(
            "UPDATE precision_shadows SET compared_at = now(),"
            " exact = :exact, agreed = :agreed, tokens = :tokens WHERE job_id = :job_id"
        ),
        {
            "job_id": pair.job_id,
            "exact": comparison.exact if comparison else None,
            "agreed": comparison.agreed if comparison else None,
            "tokens": comparison.tokens if comparison else None,
        },
    )
    connection.execute(text("DELETE FROM jobs WHERE id = :id"), {"id": pair.shadow_id})


def figures(connection: Connection) -> Sequence[ShadowFigures]:
    """The last day's agreement, by lane and reference."""
    return [ShadowFigures(**row._mapping) for row in connection.execute(_FIGURES, {"window_s": WINDOW_S})]
