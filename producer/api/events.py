"""A job's events as server-sent events: its status, its text as it comes, and its end."""

import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError

from jobs import live
from jobs.live import Event, LiveEvent
from jobs.store.reads import JobDetail
from producer import moves
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.hub import Listener, Signal
from producer.api.services import Services, Shared
from producer.refusals import Code, Refusal
from producer.views import JobView

HEARTBEAT_S = 15.0
_RETRY_MS = 2_000  # how long a client waits before it connects again
_ID = re.compile(r"[0-9]{1,10}-[0-9]{1,10}")

log = structlog.get_logger()
router = APIRouter(tags=["jobs"])


@router.get(
    "/v1/jobs/{job_id}/events",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The events until the job has ended. `status` {status, attempt}; `text` {text}: a"
            " further piece; `snapshot` {text}: all the text so far, in place of what came before; `reset`"
            " {attempt}: a new attempt, the text so far is void; `ended`: the job as `GET /v1/jobs/{job_id}`"
            " answers it, after which the stream closes.",
            "content": {
                "text/event-stream": {
                    "example": 'event: status\ndata: {"status": "running", "attempt": 1}\n\n'
                    'id: 1-2\nevent: text\ndata: {"text": "A queue is"}\n\n'
                }
            },
        },
        **responses(404, 422),
    },
)
async def events(
    job_id: str,
    tenant: CurrentTenant,
    services: Shared,
    last_event_id: Annotated[
        str | None, Header(description="Resume behind this event of an earlier stream.")
    ] = None,
) -> StreamingResponse:
    """Follow a job from wherever it stands, queued or ended too. A lost connection is resumed by
    `Last-Event-ID`; comments keep an idle one open."""
    if last_event_id and not _ID.fullmatch(last_event_id):
        raise Refusal(
            Code.INVALID_VALUE,
            "Input should be the id of an event",
            field="last-event-id",
            remedy="Leave it out to get all.",
        )
    which = moves.id_of(job_id)
    detail = await services.transact(moves.found, tenant.id, which)
    if detail.erased:  # Redis may have its text still
        raise moves.not_found()
    stream = _Stream(services, tenant.id, which, last_event_id or None)
    return StreamingResponse(
        stream.run(detail),
        media_type="text/event-stream",
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


class _Stream:
    """One client's stream of one job."""

    def __init__(self, services: Services, tenant_id: uuid.UUID, job_id: uuid.UUID, last: str | None) -> None:
        self._services, self._tenant_id, self._job_id, self._last = services, tenant_id, job_id, last
        self._resumed = last is not None
        self._sent_chars = 0

    async def run(self, detail: JobDetail) -> AsyncIterator[bytes]:
        """Everything that is sent, beginning with what the row says now."""
        job = detail.job
        yield f"retry: {_RETRY_MS}\n\n".encode()
        yield _sse("status", {"status": job.status.value, "attempt": job.attempt})
        async with self._services.hub.listening(str(self._job_id)) as listener:
            ended = job.status.terminal
            while True:
                if ended and (end := await self._end()) is not None:
                    for last in end:
                        yield last
                    return
                item = await listener.get(HEARTBEAT_S)
                if item is Signal.CLOSE:
                    return
                events = [] if item is None else await self._new(item, listener)
                for event in events:
                    if event.id:
                        yield self._send(event)
                if item is None:
                    yield b": still here\n\n"
                ended = live.ENDED in events

    async def _new(self, item: Event | Signal, listener: Listener) -> list[Event]:
        """The events in `item`, or in the backlog, that the client has not got yet."""
        if isinstance(item, Event):
            found = [item]
        else:
            found = await self._services.hub.backlog(str(self._job_id), self._last, listener)
        return [event for event in found if event.id is None or live.order(event.id) > live.order(self._last)]

    def _send(self, event: Event) -> bytes:
        self._last = event.id
        if event.event in (LiveEvent.SNAPSHOT, LiveEvent.RESET):
            self._sent_chars, self._resumed = 0, False
        self._sent_chars += len(event.data.get("text", ""))
        return _sse(event.event.value, event.data, event.id)

    async def _end(self) -> list[bytes] | None:
        """The whole text, unless the client has it, and the job; None where it goes on after all.

        So it does if it was redriven, and for us while the database is away: the poll tells of the end again.
        """
        try:
            detail = await self._services.transact(moves.found, self._tenant_id, self._job_id)
        except Refusal:
            return []  # Retention took it meanwhile.
        except SQLAlchemyError as error:
            log.warning("stream.end_delayed", job_id=str(self._job_id), error=type(error).__name__)
            return None
        if not detail.job.status.terminal:
            return None
        view = JobView.of_detail(detail)
        end = [_sse("ended", view.model_dump(mode="json"))]
        if view.result and (self._resumed or self._sent_chars != len(view.result.output)):
            end.insert(0, _sse("snapshot", {"text": view.result.output}))
        return end


def _sse(event: str, data: Mapping[str, Any], event_id: str | None = None) -> bytes:
    head = f"id: {event_id}\n" if event_id else ""
    text = f"{head}event: {event}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"
    return text.encode(errors="replace")  # A piece of text may hold half a surrogate pair.
