"""The route of chat completions: waits for the answer, or streams it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request
from fastapi.responses import JSONResponse, Response

from jobs.domain.jobs import Job, Surface
from jobs.store.tenants import Tenant
from producer import moves
from producer.api import bounded
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Services, Shared
from producer.openai import chat, chat_form, intake
from producer.openai.chat_chunks import Chunks, failure
from producer.openai.chat_form import Asked
from producer.openai.clients import EventStream, give_up, unless_gone
from producer.openai.following import Ended, end_of, follow
from producer.prepare import Idempotency

ROUTE = "/v1/chat/completions"

router = APIRouter(tags=["chat"])

_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": chat_form.schema()}}}
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The completion, or its chunks with `stream`.",
        "content": {"application/json": {}, "text/event-stream": {}},
    },
    **responses(400, 404, 409, 413, 429),
}


@router.post(ROUTE, response_class=Response, openapi_extra=_BODY, responses=_ANSWERS)
async def create_chat_completion(
    request: Request,
    tenant: CurrentTenant,
    services: Shared,
    idempotency_key: Annotated[str | None, Header(description="Makes a repeat safe, as for jobs.")] = None,
) -> Response:
    """Answer a conversation. A client that leaves before the end cancels the job, unless an Idempotency-Key
    lets it come back."""
    body = await bounded.whole(request, services.settings.api.max_body_bytes)
    asked = chat_form.parse(body)
    idempotency = Idempotency.of(idempotency_key, f"POST {ROUTE}", body)
    job = await _accept(request, services, tenant, asked, idempotency)
    waiting = _Waiting(services, job, goes_on=idempotency is not None)
    if asked.stream:
        return EventStream(waiting.chunks(asked.usage_at_the_end), waiting.left)
    try:
        return await unless_gone(request, waiting.answer())
    finally:
        await waiting.left()


async def _accept(
    request: Request, services: Services, tenant: Tenant, asked: Asked, idempotency: Idempotency | None
) -> Job:
    """The job, a new one or that of an earlier request with the same key."""
    submitter = services.submitter
    held = await services.run(submitter.repeated, tenant, idempotency) if idempotency else None
    if held is not None:
        return held
    # Not among the database's threads: counting takes the processor.
    job = await asyncio.to_thread(
        intake.prepare, submitter.preparer, tenant, asked.request, asked.tier, Surface.CHAT, idempotency
    )
    await services.limits.take(request, tenant.id, job)
    accepted = await services.run(submitter.store, job)
    if accepted.created:
        services.metrics.submitted.labels(job.kind.value, job.lane).inc()
    return accepted.job


class _Waiting:
    """A client that waits for a job's end. `goes_on`: the job does without the client, too."""

    def __init__(self, services: Services, job: Job, *, goes_on: bool) -> None:
        self._services, self._job, self._goes_on = services, job, goes_on
        self._ended = False

    async def answer(self) -> JSONResponse:
        """The completion. Raises `JobEnded` where there is none."""
        detail = (await end_of(self._services, self._job)).detail
        self._ended = True
        if detail is None or detail.result is None:
            raise failure(detail)
        return JSONResponse(chat.to_completion(detail.job, detail.result))

    async def chunks(self, usage_at_the_end: bool) -> AsyncGenerator[bytes, None]:
        """The completion piece by piece, as it is sent."""
        chunks = Chunks(self._job, usage_at_the_end=usage_at_the_end)
        yield chunks.begin()
        async with aclosing(follow(self._services, self._job)) as following:
            async for progress in following:
                self._ended = isinstance(progress, Ended)
                for chunk in chunks.of(progress):
                    yield chunk
                if chunks.over:
                    break

    async def left(self) -> None:
        """The client has gone, or has its answer: cancel what nobody waits for."""
        if not self._ended and not self._goes_on:
            await give_up(self._services, moves.cancel, self._job)
