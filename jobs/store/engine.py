"""Opens the database: pool, time limits, and how its absence is told from a bug."""

from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, ResourceClosedError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from jobs.settings import SettingsError

CONNECT_TIMEOUT_S = 3
STATEMENT_TIMEOUT_MS = 30_000


def open_engine(database_url: str, pool_size: int = 4, pool_timeout_s: float = 5.0) -> Engine:
    """A pool of `pool_size` connections, made for one process; open it after any fork, never before.

    `database_url` is libpq's (`postgresql://user:password@host/name`); psycopg 3 drives it. Raises
    `SettingsError` where it is malformed.
    """
    scheme, _, rest = database_url.partition("://")
    if not rest or scheme.split("+")[0] not in ("postgresql", "postgres"):
        raise SettingsError("setting database_url must look like postgresql://user:password@host:5432/name")
    return create_engine(
        f"postgresql+psycopg://{rest}",
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=pool_timeout_s,
        pool_pre_ping=True,
        hide_parameters=True,  # an error's text would quote prompts
        connect_args={
            "connect_timeout": CONNECT_TIMEOUT_S,
            "options": f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c timezone=UTC",
            "application_name": "trilane",
        },
    )


def is_away(error: BaseException) -> bool:
    """Whether the database could not be asked, so that the same call may succeed later."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    return isinstance(error, OperationalError | InterfaceError | PoolTimeoutError | ResourceClosedError)
