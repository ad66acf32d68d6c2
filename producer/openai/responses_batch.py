"""Responses as a batch has them: without a conversation, a stream or a row of their own."""

from collections.abc import Mapping
from typing import Any

from jobs.domain.jobs import Job
from jobs.store.reads import JobDetail
from jobs.store.responses import Asked
from producer.openai.responses_form import parse
from producer.openai.responses_translation import request_of
from producer.openai.responses_views import ResponseView
from producer.refusals import Code, Refusal
from producer.request import Request

_NEEDS_A_CLIENT = ("background", "previous_response_id")


def to_request(body: Mapping[str, Any]) -> Request:
    """The request that the body of a line makes. Raises `Refusal`."""
    form = parse(body)
    named = [name for name in _NEEDS_A_CLIENT if getattr(form, name)]
    if form.truncation == "auto":
        named.append("truncation")
    if named:
        raise Refusal(
            Code.UNSUPPORTED_PARAMETER,
            "It is not supported in batches",
            field=named[0],
            remedy="Leave it out.",
        )
    return request_of(form)


def shown(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the answer repeats of a body."""
    form = parse(body)
    return form.echo() | ({"instructions": form.instructions} if form.instructions else {})


def to_result(job: Job, result: Mapping[str, Any]) -> dict[str, Any]:
    """The response of a succeeded job. It is in its batch's file alone, so it is told as not stored."""
    body = dict(job.request.get("shown", {}))
    instructions = body.pop("instructions", None)
    asked = Asked(job.id, job.tenant_id, body, background=False, stored=False, instructions=instructions)
    return ResponseView.of(asked, JobDetail(job, result, ())).model_dump(mode="json")
