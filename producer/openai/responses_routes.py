"""The routes of responses: create, retrieve, cancel, delete; the input's items and its length."""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from jobs.domain.requests import Message
from jobs.store import responses as store
from jobs.store.tenants import Tenant
from producer import moves
from producer.api import bounded
from producer.api.auth import CurrentTenant
from producer.api.errors import responses as errors
from producer.api.services import Services, Shared
from producer.openai import responses
from producer.openai.clients import HEARTBEAT, EventStream, give_up, sse, unless_gone
from producer.openai.following import Quiet, end_of, follow
from producer.openai.json_bodies import read, takes
from producer.openai.pages import Listing, Page
from producer.openai.responses import Found
from producer.openai.responses_events import Event, Events
from producer.openai.responses_form import CreateResponse, Included, InputToCount, asks_for_nothing, parse
from producer.openai.responses_views import InputItem, OutputMessage, ResponseView, items_of
from producer.prepare import Idempotency
from producer.refusals import Code, Refusal

router = APIRouter(tags=["responses"])

_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/CreateResponse"}}},
    }
}
_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The response, or its events with `stream`.", "content": {"text/event-stream": {}}}
}


@router.post(
    "/v1/responses",
    response_model=ResponseView,
    openapi_extra=_BODY,
    responses={**_EVENTS, **errors(400, 404, 409, 413, 429)},
)
async def create_response(
    request: Request,
    tenant: CurrentTenant,
    services: Shared,
    idempotency_key: Annotated[str | None, Header(description="Makes a repeat safe, as for jobs.")] = None,
) -> Any:
    """Ask for a response. With `background` the answer comes at once, else once the response has ended; a
    client that leaves before cancels it then, unless an Idempotency-Key lets it come back."""
    body = await bounded.whole(request, services.settings.api.max_body_bytes)
    form = parse(body)
    idempotency = Idempotency.of(idempotency_key, "POST /v1/responses", body)
    response = await _accept(request, services, tenant, form, idempotency)
    waiting = _Waiting(services, response, goes_on=bool(form.background or idempotency))
    if form.stream:
        return EventStream(waiting.events(None), waiting.left)
    if form.background:
        return ResponseView.of(response.asked, response.detail)
    try:
        return await unless_gone(request, waiting.end())
    finally:
        await waiting.left()


async def _accept(
    request: Request,
    services: Services,
    tenant: Tenant,
    form: CreateResponse,
    idempotency: Idempotency | None,
) -> Found:
    """The response, a new one or that of an earlier request with the same key."""
    submitter = services.submitter
    held = await services.run(submitter.repeated, tenant, idempotency) if idempotency else None
    if held is None:
        earlier = None
        if form.previous_response_id is not None:
            earlier = await services.transact(responses.before, tenant.id, form.previous_response_id)
        # Not among the database's threads: counting takes the processor.
        job, asked = await asyncio.to_thread(
            responses.prepare, submitter.preparer, tenant, form, earlier, idempotency
        )
        await services.limits.take(request, tenant.id, job)
        accepted = await services.run(
            submitter.store, job, lambda connection: store.insert(connection, asked)
        )
        if accepted.created:
            services.metrics.submitted.labels(job.kind.value, job.lane).inc()
            return Found.accepted(asked, accepted.job)
        held = accepted.job
    return await services.transact(responses.found, tenant.id, held.id)


class _Waiting:
    """A client that waits for a response's end. `goes_on`: the response does without the client, too."""

    def __init__(self, services: Services, response: Found, *, goes_on: bool) -> None:
        self._services, self._response, self._goes_on = services, response, goes_on
        self._ended = False

    async def end(self) -> ResponseView:
        """The response as it ended. Raises `Refusal` where it was deleted meanwhile."""
        detail = (await end_of(self._services, self._response.detail.job)).detail
        if detail is None:
            raise responses.not_found()
        self._ended = True
        return ResponseView.of(self._response.asked, detail)

    async def events(self, after: int | None) -> AsyncGenerator[bytes, None]:
        """The events behind the one of the number `after`, as they are sent."""
        job = self._response.detail.job
        events = Events(self._response.asked, job, after)
        yield _sent(events.begin())
        async with aclosing(follow(self._services, job)) as following:
            async for progress in following:
                if isinstance(progress, Quiet):
                    yield HEARTBEAT
                elif sent := _sent(events.of(progress)):
                    yield sent
                if events.over:
                    break
        self._ended = events.over

    async def left(self) -> None:
        """The client has gone, or has its answer: end what nobody waits for, and drop what is not stored."""
        asked = self._response.asked
        stays = asked.stored if self._ended else self._goes_on
        if stays:
            return
        move = moves.cancel if asked.stored else responses.drop
        await give_up(self._services, move, self._response.detail.job)


def _sent(events: Iterable[Event]) -> bytes:
    return b"".join(sse(event, event["type"]) for event in events)


class InputTokens(BaseModel):
    """How long an input is."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


@router.post("/v1/responses/input_tokens", openapi_extra=takes(InputToCount), responses=errors(400, 404, 413))
async def count_input_tokens(request: Request, tenant: CurrentTenant, services: Shared) -> InputTokens:
    """Count the tokens that a response's input would have; nothing is stored."""
    form = await read(request, services, InputToCount)
    earlier: list[Message] = []
    if form.previous_response_id is not None:
        _, earlier = await services.transact(responses.before, tenant.id, form.previous_response_id)
    # Not among the database's threads: counting takes the processor.
    tokens = await asyncio.to_thread(responses.count, services.submitter.preparer, form, earlier)
    return InputTokens(input_tokens=tokens)


class Retrieval(BaseModel):
    """How a response is shown."""

    model_config = ConfigDict(extra="forbid")

    stream: bool = Field(default=False, description="Its events, to its end, wherever it stands.")
    starting_after: int | None = Field(default=None, ge=0, description="Only events behind this number.")
    include: Included = Field(default=[], alias="include[]")
    include_obfuscation: Annotated[bool, AfterValidator(asks_for_nothing)] = False


@router.get(
    "/v1/responses/{response_id}",
    response_model=ResponseView,
    responses={**_EVENTS, **errors(400, 404)},
)
async def retrieve_response(
    response_id: str, query: Annotated[Retrieval, Query()], tenant: CurrentTenant, services: Shared
) -> Any:
    """A response as it is now, or its events: from the beginning, or from where an earlier stream broke."""
    if query.starting_after is not None and not query.stream:
        raise Refusal(
            Code.CONFLICTING_FIELDS,
            "Only a stream starts after an event",
            field="starting_after",
            remedy="Set stream to true, or leave it out.",
        )
    response = await services.transact(responses.kept, tenant.id, response_id)
    if not query.stream:
        return ResponseView.of(response.asked, response.detail)
    waiting = _Waiting(services, response, goes_on=True)
    return EventStream(waiting.events(query.starting_after), waiting.left)


@router.post("/v1/responses/{response_id}/cancel", responses=errors(404))
async def cancel_response(response_id: str, tenant: CurrentTenant, services: Shared) -> ResponseView:
    """Cancel a response that is queued or in progress; its place is free within moments. One that has ended
    is answered as it is."""
    response = await services.run(
        responses.cancel, services.engine, services.announcer, tenant.id, response_id
    )
    return ResponseView.of(response.asked, response.detail)


class DeletedResponse(BaseModel):
    """A response that is no more."""

    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


@router.delete("/v1/responses/{response_id}", responses=errors(404))
async def delete_response(response_id: str, tenant: CurrentTenant, services: Shared) -> DeletedResponse:
    """Delete a response with all that hangs on it; one that has not ended is cancelled."""
    await services.run(responses.delete, services.engine, services.announcer, tenant.id, response_id)
    return DeletedResponse(id=response_id)


class ItemsWanted(Listing):
    """Which items a list shows."""

    order: Literal["asc", "desc"] = "desc"
    include: Included = Field(default=[], alias="include[]")


@router.get("/v1/responses/{response_id}/input_items", responses=errors(400, 404))
async def list_input_items(
    response_id: str, query: Annotated[ItemsWanted, Query()], tenant: CurrentTenant, services: Shared
) -> Page[InputItem | OutputMessage]:
    """The conversation that a response answers, earlier responses included, instructions not."""
    response = await services.transact(responses.kept, tenant.id, response_id)
    items = items_of(response.asked, response.detail.job)
    if query.order == "desc":
        items.reverse()
    places = {item.id: place for place, item in enumerate(items)}
    if query.after is not None and query.after not in places:
        raise Refusal(Code.NOT_FOUND, "No such item", field="after")
    start = places[query.after] + 1 if query.after is not None else 0
    return Page[InputItem | OutputMessage].of(items[start:], query.limit)
