"""The one clock: aware UTC, and nothing else."""

from datetime import UTC, datetime


def now() -> datetime:
    """The time of this process, in UTC; the database's own clock decides leases."""
    return datetime.now(UTC)
