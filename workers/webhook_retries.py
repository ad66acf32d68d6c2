"""When a failed webhook is tried again: the schedule of Standard Webhooks, and what the receiver asks."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

# After the first try, at once: seconds until the second, the third, and so on.
SCHEDULE_S = (5, 300, 1_800, 7_200, 18_000, 36_000, 50_400, 72_000, 86_400)
MAX_RETRY_AFTER_S = 86_400.0
JITTER = 0.1


def delay_s(
    tries: int, retry_after: str | None, now: datetime, jitter: float, scale: float = 1.0
) -> float | None:
    """Seconds until the next try after `tries` of them; None when they are used up.

    `Retry-After` puts a try off and never brings it forward, since asking often would use the tries up in
    minutes instead of days. `jitter`, from 0 to 1, adds up to a tenth; `scale` shortens the schedule only.
    """
    if tries > len(SCHEDULE_S):
        return None
    planned = SCHEDULE_S[tries - 1] * scale
    return max(planned, _asked_s(retry_after, now)) * (1 + JITTER * jitter)


def _asked_s(retry_after: str | None, now: datetime) -> float:
    value = (retry_after or "").strip()
    asked = float(value) if value.isascii() and value.isdigit() else _until_s(value, now)
    return min(max(asked, 0.0), MAX_RETRY_AFTER_S)


def _until_s(date: str, now: datetime) -> float:
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return 0.0
    return ((at if at.tzinfo else at.replace(tzinfo=UTC)) - now).total_seconds()
