"""Turns a request of OpenAI's API into a job in the lane of its service tier, or in the next that fits."""

from collections.abc import Mapping
from dataclasses import replace

from jobs.domain.jobs import NewJob, Surface
from jobs.domain.lanes import ALWAYS_SLOWEST_TOKENS, LANES, LanePolicy
from jobs.domain.requests import Message
from jobs.store.tenants import Tenant
from producer.openai import truncation
from producer.openai.tiers import KIND_OF_LANE, lane_of
from producer.prepare import Idempotency, Preparer
from producer.refusals import Code, Refusal
from producer.request import DEFAULT_MAX_TOKENS, ChatMessage, Request


def prepare(
    preparer: Preparer,
    tenant: Tenant,
    request: Request,
    tier: str | None,
    surface: Surface,
    idempotency: Idempotency | None = None,
) -> NewJob:
    """The job of `request` (its kind and lane are set here). Raises `Refusal`.

    A prompt that is too long for the tier's lane goes to the first slower one that it fits.
    """
    wished = lane_of(tier)
    prompt, prompt_tokens = preparer.counted(request)
    refused: Refusal | None = None
    for lane in _from(wished, prompt.model.lanes):
        asked = request.model_copy(update={"lane": lane, "kind": KIND_OF_LANE[wished]})
        try:
            job = preparer.job(tenant, asked, prompt, prompt_tokens, idempotency)
            return replace(job, surface=surface)
        except Refusal as refusal:
            if refusal.code is not Code.PROMPT_TOO_LONG:
                raise
            refused = refusal
    raise refused or RuntimeError("there are no lanes")


def truncated(preparer: Preparer, request: Request, tier: str | None) -> tuple[Request, int]:
    """The request so that it fits its tier's own lane, and how many tokens were dropped. Raises `Refusal`."""
    wished, model = lane_of(tier), preparer.models.find(request.model)
    lane = _from(wished, model.lanes)[0]
    room = model.lanes[lane].max_model_len - (request.max_tokens or DEFAULT_MAX_TOKENS[KIND_OF_LANE[wished]])
    if lane != list(model.lanes)[-1]:
        room = min(room, ALWAYS_SLOWEST_TOKENS - 1)
    given = [Message(message.role, message.content) for message in request.messages or ()]
    messages, dropped = truncation.fitted(given, room, model.counter)
    if not dropped:
        return request, 0
    left = [ChatMessage(role=message.role, content=message.content) for message in messages]
    return request.model_copy(update={"messages": left}), dropped


def _from(wished: str, lanes: Mapping[str, LanePolicy]) -> list[str]:
    """The lane that is wished for and those slower; the slowest where the model is served by none of them."""
    ranks = list(LANES)
    return [lane for lane in lanes if ranks.index(lane) >= ranks.index(wished)] or list(lanes)[-1:]
