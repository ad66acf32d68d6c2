"""How much a tenant may ask for in a minute: a bucket of requests and one of tokens, kept in Redis."""

import math
import time
import uuid
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import Request
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from jobs.domain.jobs import NewJob
from jobs.settings import Settings
from producer.refusals import Code, Refusal

_MINUTE_MS = 60_000
_TIMEOUT_S = 0.5
_PAUSE_S = 1.5  # in which nobody waits for a Redis that did not answer

# Each bucket holds as much as a minute fills. What does not fit into all of them is taken out of none.
# Answers for each bucket the milliseconds until the cost is there, and what is left.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000 + time[2] / 1000
local answer, levels, fits = {}, {}, true
for i, key in ipairs(KEYS) do
  local size, cost = tonumber(ARGV[2 * i - 1]), tonumber(ARGV[2 * i])
  local held = redis.call('HMGET', key, 'level', 'at')
  local since = now - (tonumber(held[2]) or now)
  levels[i] = math.min(size, (tonumber(held[1]) or size) + since * size / 60000)
  answer[2 * i - 1] = math.max(0, math.ceil((cost - levels[i]) * 60000 / size))
  fits = fits and levels[i] >= cost
end
for i, key in ipairs(KEYS) do
  if fits then levels[i] = levels[i] - tonumber(ARGV[2 * i]) end
  redis.call('HSET', key, 'level', levels[i], 'at', now)
  redis.call('PEXPIRE', key, 60000)
  answer[2 * i] = math.floor(levels[i])
end
return answer
"""

log = structlog.get_logger()


class Limits:
    """The buckets of all tenants. They are a hint: where Redis is away, everything is let through."""

    def __init__(self, settings: Settings) -> None:
        """Connect to nothing yet."""
        sizes = {"requests": settings.api.requests_per_minute, "tokens": settings.api.tokens_per_minute}
        self._sizes = {name: size for name, size in sizes.items() if size is not None}
        self._redis: Any = Redis.from_url(
            settings.redis_url,
            socket_connect_timeout=_TIMEOUT_S,
            socket_timeout=_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )
        self._take = self._redis.register_script(_TAKE)
        self._next_try = 0.0

    async def take(self, request: Request, tenant_id: uuid.UUID, job: NewJob) -> None:
        """Charge the tenant with a job: one request, its prompt, and its answers as long as they may be.

        The answer to `request` will say what is left. Raises `Refusal` where that is not enough.
        """
        if not self._sizes or time.monotonic() < self._next_try:
            return
        costs = {"requests": 1, "tokens": _tokens(job)}
        keys = [f"limit:{tenant_id}:{name}" for name in self._sizes]
        arguments = [number for name, size in self._sizes.items() for number in (size, costs[name])]
        try:
            answer = await self._take(keys=keys, args=arguments)
        except (RedisError, OSError) as error:
            self._next_try = time.monotonic() + _PAUSE_S
            log.warning("limits.unreachable", error=type(error).__name__)
            return
        waits = dict(zip(self._sizes, answer[::2], strict=True))
        left = dict(zip(self._sizes, answer[1::2], strict=True))
        request.state.headers = self._shown(left)
        short = max(waits, key=lambda name: waits[name])
        if waits[short]:
            never = costs[short] > self._sizes[short]
            request.state.headers |= {"x-should-retry": "false"} if never else _retry_after(waits[short])
            raise self._refusal(short, costs[short])

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    def _shown(self, left: Mapping[str, int]) -> dict[str, str]:
        """OpenAI's headers: what a minute gives, what is left of it, and when all of it will be there."""
        headers = {}
        for name, size in self._sizes.items():
            headers[f"x-ratelimit-limit-{name}"] = str(size)
            headers[f"x-ratelimit-remaining-{name}"] = str(left[name])
            headers[f"x-ratelimit-reset-{name}"] = _duration((size - left[name]) * _MINUTE_MS // size)
        return headers

    def _refusal(self, name: str, cost: int) -> Refusal:
        size = self._sizes[name]
        if cost > size:
            return Refusal(
                Code.RATE_LIMITED,
                f"The request may take {cost} {name}, more than a minute gives",
                limit=size,
                remedy="Shorten the prompt, or lower max_tokens.",
            )
        return Refusal(
            Code.RATE_LIMITED,
            f"The tenant has not enough {name} left in this minute",
            limit=size,
            remedy="Try again after the time that Retry-After names.",
        )


def _tokens(job: NewJob) -> int:
    sampling = job.request["sampling"]
    return int(job.prompt_tokens + sampling["max_tokens"] * sampling.get("n", 1))


def _retry_after(wait_ms: int) -> dict[str, str]:
    return {"retry-after": str(math.ceil(wait_ms / 1_000)), "retry-after-ms": str(wait_ms)}


def _duration(ms: int) -> str:
    """A duration as OpenAI writes it: `120ms`, `8.64s`, `1m0s`."""
    if ms < 1_000:
        return f"{ms}ms"
    minutes, rest_ms = divmod(ms, _MINUTE_MS)
    return f"{minutes}m{rest_ms // 1_000}s" if minutes else f"{rest_ms / 1_000:g}s"
