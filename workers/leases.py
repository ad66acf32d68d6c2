"""A worker's claims and their leases: taken many in one transaction, renewed together."""

import asyncio
import uuid
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor

from sqlalchemy import Engine as Database

from jobs.domain.jobs import Claim
from jobs.domain.outcomes import CloseReason
from jobs.store import claims, reads
from workers.grouping import Grouped
from workers.outage import OutageTolerated

CLAIM_LIMIT = 128
_AWAY_PAUSE_S = 0.5


class Leases:
    """Claims and renews for one worker. `leaving` tells that a database that is away is not waited for."""

    def __init__(
        self,
        database: Database,
        executor: Executor,
        worker: str,
        lease_s: float,
        leaving: Callable[[], bool],
    ) -> None:
        self._database, self._executor = database, executor
        self._worker, self._lease_s, self._leaving = worker, lease_s, leaving
        self._grouped: Grouped[uuid.UUID, Claim | None] = Grouped(self._claim, CLAIM_LIMIT)

    async def claim(self, job_id: str) -> Claim | None:
        """One claim, made with others; None for a job that is not to be had.

        Raises `ValueError` for an id that is none, to this caller alone.
        """
        return await self._grouped.add(uuid.UUID(job_id))

    async def keep(
        self,
        held: Callable[[], Collection[tuple[uuid.UUID, int]]],
        lost: Callable[[tuple[uuid.UUID, int], CloseReason], None],
    ) -> None:
        """Renew the leases that are `held`, for ever; tell of those that were `lost`, and why."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._lease_s / 3)
            keys = list(held())
            if not keys:
                continue
            with OutageTolerated("lease.database_away", jobs=len(keys)):
                gone = await loop.run_in_executor(self._executor, self._renew_now, keys)
                for key, reason in gone.items():
                    lost(key, reason)

    async def _claim(self, ids: Sequence[uuid.UUID]) -> Sequence[Claim | None]:
        """Claim in one transaction; while the database is away, wait: the places keep new work out."""
        loop = asyncio.get_running_loop()
        while True:
            with OutageTolerated("claim.database_away", jobs=len(ids)):
                found = await loop.run_in_executor(self._executor, self._claim_now, ids)
                # An id that came twice is one claim: the second asks in vain.
                return [found.pop(job_id, None) for job_id in ids]
            if self._leaving():
                return [None] * len(ids)  # they still wait; the sweeper has them announced again
            await asyncio.sleep(_AWAY_PAUSE_S)

    def _claim_now(self, ids: Sequence[uuid.UUID]) -> dict[uuid.UUID, Claim]:
        with self._database.begin() as connection:
            got = claims.claim(connection, ids, self._worker, self._lease_s)
        return {claim.id: claim for claim in got}

    def _renew_now(self, held: list[tuple[uuid.UUID, int]]) -> dict[tuple[uuid.UUID, int], CloseReason]:
        with self._database.begin() as connection:
            kept = claims.renew(connection, held, self._lease_s)
            lost = [key for key in held if key not in kept]
            cancelled = reads.cancelled(connection, [job_id for job_id, _ in lost]) if lost else frozenset()
        return {key: CloseReason.CANCEL if key[0] in cancelled else CloseReason.LEASE_LOST for key in lost}
