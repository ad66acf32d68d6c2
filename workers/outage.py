"""What a worker does while the database is away: it says so, goes on, and asks again later."""

from types import TracebackType

import structlog

from jobs.store.engine import is_away

log = structlog.get_logger()


class OutageTolerated:
    """A block that is left where the database is away, with an `event` in the log; all else is raised."""

    def __init__(self, event: str, **fields: int) -> None:
        self._event, self._fields = event, fields

    def __enter__(self) -> None:
        """Nothing is to be done."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or not is_away(error):
            return False
        log.warning(self._event, **self._fields)
        return True
