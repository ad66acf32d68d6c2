"""What a line of a batch asks and is answered, by the endpoint that it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.domain.jobs import Job
from producer.openai import chat, responses_batch, responses_translation
from producer.refusals import Code, Refusal
from producer.request import Request

Result = Mapping[str, Any]  # a row of the results, as `jobs.store.reads.detail` answers it


@dataclass(frozen=True, slots=True)
class _Endpoint:
    to_request: Callable[[Mapping[str, Any]], Request]
    to_result: Callable[[Job, Result], dict[str, Any]]
    # What an answer repeats of its body, beside what the job has; it is kept as `shown` in the job's request.
    shown: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda body: {}
    # Tells a refusal of the request by the names of its body's fields.
    renamed: Callable[[Refusal], Refusal] = lambda refusal: refusal


_ENDPOINTS: Mapping[str, _Endpoint] = {
    "/v1/chat/completions": _Endpoint(chat.to_request, chat.to_completion),
    "/v1/responses": _Endpoint(
        responses_batch.to_request,
        responses_batch.to_result,
        responses_batch.shown,
        responses_translation.renamed,
    ),
}
ENDPOINTS = tuple(_ENDPOINTS)
# Every line goes to the cold lane, and its answer into a file.
_ASKS_NOTHING = {"service_tier": (None, "auto", "default", "flex"), "stream": (None, False)}


def to_request(endpoint: str, body: Mapping[str, Any]) -> Request:
    """The request that a body of this endpoint makes. Raises `Refusal` or pydantic's `ValidationError`."""
    for name, asks_nothing in _ASKS_NOTHING.items():
        if body.get(name) not in asks_nothing:
            raise Refusal(
                Code.UNSUPPORTED_PARAMETER,
                "A batch has no use for this value",
                field=name,
                remedy="Leave it out.",
            )
    return _ENDPOINTS[endpoint].to_request(body)


def shown(endpoint: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the answer will repeat of a body, beside what the job has anyway; kept in the job's request."""
    return _ENDPOINTS[endpoint].shown(body)


def renamed(endpoint: str, refusal: Refusal) -> Refusal:
    """The same refusal of a request, told by the names of the body's fields."""
    return _ENDPOINTS[endpoint].renamed(refusal)


def to_result(endpoint: str, job: Job, result: Result) -> dict[str, Any]:
    """The answer of a succeeded job as this endpoint shows it."""
    return _ENDPOINTS[endpoint].to_result(job, result)
