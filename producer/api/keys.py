"""Which tenant an API key speaks for, remembered for a moment."""

import time
from collections.abc import Awaitable, Callable

from jobs.store.tenants import Tenant

KNOWN_FOR_S = 3.0  # a revoked key ends within this time
_KNOWN_AT_MOST = 10_000


class Keys:
    """Looks keys up in the database, at most once in `KNOWN_FOR_S` for each that is good."""

    def __init__(self, look_up: Callable[[str], Awaitable[Tenant | None]]) -> None:
        self._look_up = look_up
        self._known: dict[str, tuple[float, Tenant]] = {}

    async def tenant(self, key: str) -> Tenant | None:
        """The key's tenant; None if it is unknown or was revoked."""
        until, known = self._known.get(key, (0.0, None))
        if time.monotonic() < until:
            return known
        asked_at = time.monotonic()
        tenant = await self._look_up(key)
        if len(self._known) >= _KNOWN_AT_MOST:
            self._known.clear()
        if tenant is None:
            self._known.pop(key, None)
        else:
            self._known[key] = (asked_at + KNOWN_FOR_S, tenant)
        return tenant
