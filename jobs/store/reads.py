"""Reads of single jobs and of a tenant's list."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import Any

from sqlalchemy import Connection, text

from jobs.domain.jobs import Job, Status, least_id
from jobs.domain.lanes import LANES, Kind
from jobs.store.rows import JOB_COLUMNS, job_of


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with its result (None until it succeeded) and the latency records of its attempts."""

    job: Job
    result: Mapping[str, Any] | None
    latency: Sequence[Mapping[str, Any]]

    @property
    def erased(self) -> bool:
        """Whether its texts were deleted, and only its figures are left."""
        return not self.job.request or (self.job.status is Status.SUCCEEDED and self.result is None)


def get(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Job | None:
    """The tenant's job, or None."""
    row = connection.execute(
        text(f"SELECT {JOB_COLUMNS} FROM jobs WHERE id = :id AND tenant_id = :tenant_id"),
        {"id": job_id, "tenant_id": tenant_id},
    ).one_or_none()
    return job_of(row) if row else None


def detail(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> JobDetail | None:
    """The tenant's job with its result and latency, or None."""
    job = get(connection, tenant_id, job_id)
    if job is None:
        return None
    result = None
    if job.status is Status.SUCCEEDED:
        row = connection.execute(
            text(
                "SELECT attempt, output, finish_reason, prompt_tokens, cached_tokens, output_tokens, choices,"
                " windows FROM results WHERE job_id = :id"
            ),
            {"id": job_id},
        ).one_or_none()
        result = dict(row._mapping) if row else None
    latency = connection.execute(
        text("SELECT * FROM latency_records WHERE job_id = :id ORDER BY attempt"), {"id": job_id}
    )
    records = [{k: v for k, v in row._mapping.items() if k != "job_id"} for row in latency]
    return JobDetail(job, result, records)


@dataclass(frozen=True, slots=True)
class Filter:
    """What a list is narrowed to; times are of acceptance."""

    lane: str | None = None
    status: str | None = None
    kind: str | None = None
    created_after: datetime | None = None
    created_before: datetime | None = None


_CLOCKS_DIFFER_S = 3_600.0  # at most; also a bulk may take this long to be stored
_FIRST, _LAST = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)
_NARROWED = ("lane", "kind", "status")
# Times are of the database's clock; ids, which sort as the list does, of the producers'. So the ids bound
# what is read, and the times decide.
_TIMES = {"created_after": "created_at >= :created_after", "created_before": "created_at < :created_before"}
# Keys are compared and sorted as a whole, which one index alone can do, so that no other is read through.
_ALL = "(tenant_id, id) >= (:tenant_id, :first) AND (tenant_id, id) < (:tenant_id, :last)"
# Of each lane, kind and status that is meant a page, so that what there is none of is not searched for.
_EACH = """
    id = ANY(ARRAY(
        SELECT page.id FROM unnest(CAST(:lane AS text[]), CAST(:kind AS text[]), CAST(:status AS text[]))
            AS meant (lane, kind, status)
        CROSS JOIN LATERAL (
            SELECT id FROM jobs WHERE %s
            AND (tenant_id, lane, kind, status, id)
                >= (:tenant_id, meant.lane, meant.kind, meant.status, :first)
            AND (tenant_id, lane, kind, status, id)
                < (:tenant_id, meant.lane, meant.kind, meant.status, :last)
            ORDER BY tenant_id DESC, lane DESC, kind DESC, status DESC, id DESC LIMIT :limit
        ) AS page
        ORDER BY page.id DESC LIMIT :limit
    ))
"""


def listing(
    connection: Connection, tenant_id: uuid.UUID, wanted: Filter, limit: int, after: uuid.UUID | None = None
) -> list[Job]:
    """The tenant's jobs, newest first, from behind the id `after`; ids sort by time, so pages stay stable."""
    values: dict[str, Any] = {"tenant_id": tenant_id, "limit": limit, "first": _FIRST, "last": after or _LAST}
    if wanted.created_after is not None:
        values["first"] = least_id(wanted.created_after, -_CLOCKS_DIFFER_S)
    if wanted.created_before is not None:
        values["last"] = min(values["last"], least_id(wanted.created_before, _CLOCKS_DIFFER_S))
    times = {name: getattr(wanted, name) for name in _TIMES if getattr(wanted, name) is not None}
    within = " AND ".join(["true", *(_TIMES[name] for name in times)])
    if any(getattr(wanted, name) is not None for name in _NARROWED):
        meant = product(
            [wanted.lane] if wanted.lane else LANES,
            [wanted.kind] if wanted.kind else Kind,
            [wanted.status] if wanted.status else Status,
        )
        values |= zip(_NARROWED, map(list, zip(*meant, strict=True)), strict=True)
        which = _EACH % within
    else:
        which = f"{_ALL} AND {within}"
    rows = connection.execute(
        text(f"SELECT {JOB_COLUMNS} FROM jobs WHERE {which} ORDER BY tenant_id DESC, id DESC LIMIT :limit"),
        values | times,
    )
    return [job_of(row) for row in rows]


_TERMINAL = tuple(str(status) for status in Status if status.terminal)


def ended(connection: Connection, ids: list[uuid.UUID]) -> set[uuid.UUID]:
    """Those of `ids` that have ended (or are gone): what a waiting client asks when hints stay away."""
    rows = connection.execute(
        text("SELECT id FROM jobs WHERE id = ANY(:ids) AND NOT (status = ANY(:terminal))"),
        {"ids": ids, "terminal": list(_TERMINAL)},
    )
    return set(ids) - {row.id for row in rows}


def cancelled(connection: Connection, ids: list[uuid.UUID]) -> frozenset[uuid.UUID]:
    """Those of `ids` that their tenants cancelled."""
    rows = connection.execute(
        text("SELECT id FROM jobs WHERE id = ANY(:ids) AND status = 'cancelled'"), {"ids": ids}
    )
    return frozenset(row.id for row in rows)
