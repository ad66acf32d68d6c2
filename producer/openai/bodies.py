"""What a line of a batch asks and is answered, by the endpoint that it names."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jobs.domain.jobs import Job
from producer.openai import chat
from producer.request import Request

Result = Mapping[str, Any]  # a row of the results, as `jobs.store.reads.detail` answers it


@dataclass(frozen=True, slots=True)
class _Endpoint:
    to_request: Callable[[Mapping[str, Any]], Request]
    to_result: Callable[[Job, Result], dict[str, Any]]


_ENDPOINTS: Mapping[str, _Endpoint] = {
    "/v1/chat/completions": _Endpoint(chat.to_request, chat.to_completion),
}
ENDPOINTS = tuple(_ENDPOINTS)


def to_request(endpoint: str, body: Mapping[str, Any]) -> Request:
    """The request that a body of this endpoint makes. Raises `Refusal` or pydantic's `ValidationError`."""
    return _ENDPOINTS[endpoint].to_request(body)


def to_result(endpoint: str, job: Job, result: Result) -> dict[str, Any]:
    """The answer of a succeeded job as this endpoint shows it."""
    return _ENDPOINTS[endpoint].to_result(job, result)
