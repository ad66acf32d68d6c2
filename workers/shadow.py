"""Has a share of a lane's jobs answered by the reference lane too, and keeps how far the answers agree."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from sqlalchemy import Connection, Engine

from jobs.domain import clock
from jobs.domain.agreement import compare, pieces
from jobs.domain.jobs import NewJob, new_id
from jobs.domain.lanes import Kind, LanePolicy, queue_name
from jobs.settings import Settings
from jobs.store import intake, shadows, tenants

TENANT = "trilane-shadows"  # no key is ever made for it
PRIORITY = 9  # a shadow waits for everybody
UNDER_WAY = 4  # at once at most, so that the reference lane hardly feels them
DEADLINE_S = 3_600
EVERY_S = 1.0

log = structlog.get_logger()


class Shadower:
    """One round of both; the control process calls `step` again and again."""

    def __init__(self, settings: Settings, engine: Engine, now: Callable[[], float] = time.monotonic) -> None:
        """`now` is a clock in seconds that never goes back."""
        self._settings, self._lanes = settings, settings.lanes
        self._engine, self._now = engine, now
        self._shadowed = [lane for lane in self._lanes.values() if lane.shadow.share]
        self._since: datetime | None = None
        self._next = 0.0

    def step(self) -> None:
        """Do what is due now; nothing where no lane has a share."""
        if not self._shadowed or self._now() < self._next:
            return
        self._next = self._now() + EVERY_S
        with self._engine.begin() as connection:
            self._compare(connection)
            since, self._since = self._since, shadows.now(connection)
            if since is not None:
                for lane in self._shadowed:
                    self._begin(connection, lane, since)

    def _begin(self, connection: Connection, lane: LanePolicy, since: datetime) -> None:
        reference = self._lanes[lane.shadow.reference]
        tenant = tenants.get_or_create(connection, TENANT)
        found = shadows.originals(
            connection,
            lane.name,
            lane.shadow.share,
            since=since,
            tenant_id=tenant.id,
            room=reference.max_model_len,
            n=max(UNDER_WAY - shadows.under_way(connection), 0),
        )
        for original in found:
            if reference.name not in self._settings.lanes_of(original.model):
                continue
            shadow = NewJob(
                id=new_id(),
                tenant_id=tenant.id,
                kind=Kind(original.kind),
                model=original.model,
                lane=reference.name,
                priority=PRIORITY,
                queue=queue_name(reference.name, PRIORITY, self._settings.further(original.model)),
                request=original.request,
                prompt_tokens=original.prompt_tokens,
                prefix=original.prefix,
                deadline=clock.now() + timedelta(seconds=DEADLINE_S),
                max_attempts=1,
            )
            intake.insert_many(connection, [shadow])
            shadows.begin(connection, original.id, shadow.id, lane.name, reference.name)

    def _compare(self, connection: Connection) -> None:
        for pair in shadows.ended(connection):
            found = None
            if pair.reference is not None and pair.candidate is not None:
                found = compare(pieces(pair.reference), pieces(pair.candidate))
            shadows.compared(connection, pair, found)
            agreement = round(found.agreement, 4) if found else None
            log.info("shadow.compared", job_id=str(pair.job_id), agreement=agreement)
