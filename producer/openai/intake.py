"""Turns a request of OpenAI's API into a job in the lane of its service tier, or in the next that fits."""

from dataclasses import replace

from jobs.domain.jobs import NewJob, Surface
from jobs.domain.lanes import LANES
from jobs.store.tenants import Tenant
from producer.openai.tiers import KIND_OF_LANE, lane_of
from producer.prepare import Idempotency, Preparer
from producer.refusals import Code, Refusal
from producer.request import Request


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
    lanes = list(LANES)
    wished = lane_of(tier)
    refused: Refusal | None = None
    for lane in lanes[lanes.index(wished) :]:
        asked = request.model_copy(update={"lane": lane, "kind": KIND_OF_LANE[wished]})
        try:
            return replace(preparer.one(tenant, asked, idempotency), surface=surface)
        except Refusal as refusal:
            if refusal.code is not Code.PROMPT_TOO_LONG:
                raise
            refused = refusal
    raise refused or RuntimeError("there are no lanes")
