"""Records how attempts ended, many in one transaction; a value that Postgres refuses fails its job alone."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import replace

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from jobs.domain.jobs import Move, Status
from jobs.store import records
from jobs.store.engine import is_away
from jobs.store.records import Ending
from workers.grouping import Grouped
from workers.outage import OutageTolerated

GROUP_LIMIT = 128
NOT_STORABLE = "output_not_storable"
_AWAY_PAUSE_S = 0.5

log = structlog.get_logger()


class Recorder:
    """Group commit of endings. A database that is away is waited for: the fence judges what comes late."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        """Write through `engine` in the threads of `executor`."""
        self._engine, self._executor = engine, executor
        self._grouped: Grouped[Ending, Status | None] = Grouped(self._write, GROUP_LIMIT)

    async def record(self, ending: Ending) -> Status | None:
        """Write one ending with whatever else ends now; the job's status, or None if it was not ours."""
        return await self._grouped.add(ending)

    async def _write(self, endings: Sequence[Ending]) -> Sequence[Status | None]:
        loop = asyncio.get_running_loop()
        while True:
            with OutageTolerated("record.database_away", endings=len(endings)):
                return await loop.run_in_executor(self._executor, self._commit, endings)
            await asyncio.sleep(_AWAY_PAUSE_S)

    def _commit(self, endings: Sequence[Ending]) -> list[Status | None]:
        try:
            with self._engine.begin() as connection:
                ended = records.record(connection, endings).ended
            return [ended.get((ending.job_id, ending.attempt)) for ending in endings]
        except (DBAPIError, UnicodeError) as error:  # NUL bytes; lone surrogates, found before they are sent
            if is_away(error):
                raise
            if len(endings) > 1:
                return [status for ending in endings for status in self._commit([ending])]
            return self._commit_refused(endings[0], error)

    def _commit_refused(self, ending: Ending, error: Exception) -> list[Status | None]:
        log.error("record.refused", job_id=str(ending.job_id), error=type(error).__name__)
        if ending.error_code == NOT_STORABLE:
            return [None]  # not even its failure can be stored: the lease runs out and the sweeper judges
        return self._commit([_without_answer(ending)])


def _without_answer(ending: Ending) -> Ending:
    """The same attempt as a failure that says why its answer is not kept."""
    return replace(
        ending,
        move=Move.FAIL if ending.move is Move.SUCCEED else ending.move,
        answer=None,
        error_code=NOT_STORABLE,
        error_message="the answer holds a character that the database cannot keep (NUL or a lone surrogate)",
        latency=replace(ending.latency, outcome=NOT_STORABLE),
    )
