"""What is done for a client only while it is there: waiting for an answer, streaming one."""

import asyncio
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import structlog
from fastapi.responses import StreamingResponse
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from jobs.broker import Announcer
from jobs.domain.jobs import Job
from jobs.store.engine import is_away
from producer.api.services import Services
from producer.refusals import Refusal

T = TypeVar("T")
_Move = Callable[[Engine, Announcer, uuid.UUID, uuid.UUID], object]
log = structlog.get_logger()

HEARTBEAT = b": still here\n\n"
_AWAY_PAUSE_S = 2.0


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. Raises `ClientDisconnect`, the work cancelled, once the client has gone."""
    tasks = working, going = asyncio.create_task(work), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        going.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _gone(request: Request) -> None:
    """Return once the client has gone; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


class EventStream(StreamingResponse):
    """Server-sent events. `left` is called once they have ended, or the client has gone before."""

    def __init__(self, events: AsyncGenerator[bytes, None], left: Callable[[], Awaitable[None]]) -> None:
        super().__init__(
            events,
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )
        self._events, self._left = events, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()
            await self._left()


async def give_up(services: Services, move: _Move, job: Job, *, again: bool = False) -> None:
    """Carry out the move of a job that nobody waits for any more; one that has ended is left as it is.

    While the database is away it is tried `again` and again beside the requests, until the API stops.
    """
    run = services.run_long if again else services.run  # what is left behind takes no threads from the rest
    try:
        await run(move, services.engine, services.announcer, job.tenant_id, job.id)
    except Refusal:
        log.debug("client.left_an_ended_job", job_id=str(job.id))
    except SQLAlchemyError as error:
        log.warning("client.job_not_ended", job_id=str(job.id), error=type(error).__name__)
        if is_away(error):
            services.later(_AWAY_PAUSE_S, give_up, services, move, job, again=True)


def sse(data: Mapping[str, Any], event: str | None = None) -> bytes:
    """One event; JSON in ASCII, which no reader of lines can split."""
    head = f"event: {event}\n" if event else ""
    return f"{head}data: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
