"""A response as OpenAI's clients see it, made from its job and what was asked for beside it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from jobs.domain import openai_ids
from jobs.domain.jobs import Job, Status
from jobs.domain.openai_ids import Prefix
from jobs.domain.outcomes import FinishReason
from jobs.domain.requests import Message, Role, from_json
from jobs.store.reads import JobDetail
from jobs.store.responses import Asked
from producer.openai.tiers import TIER_OF_LANE

STATUS_OF_JOB: Mapping[Status, str] = {
    Status.QUEUED: "queued",
    Status.RUNNING: "in_progress",
    Status.SUCCEEDED: "completed",
    Status.FAILED: "failed",
    Status.CANCELLED: "cancelled",
    Status.EXPIRED: "failed",
}
# OpenAI knows one word for all that a guard ends; ours is told beside it.
INCOMPLETE: Mapping[str, str] = {
    FinishReason.LENGTH: "max_output_tokens",
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.REPETITION: "content_filter",
}
WHOLE = "whole"  # where a job's request keeps its messages as they were before truncation
_OF_THE_REQUEST = ("prompt_too_long", "invalid_request", "unsupported_parameter")


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorOfResponse(_View):
    """Why a response failed: one of OpenAI's codes, and ours as the type."""

    code: Literal["server_error", "invalid_prompt"]
    message: str
    type: str


class IncompleteDetails(_View):
    """Why a text ends before its end."""

    reason: str = Field(description="`max_output_tokens` or `content_filter`.")
    finish_reason: str = Field(description="Ours: `length`, `content_filter` or `repetition`.")


class OutputText(_View):
    """A text with nothing attached."""

    type: Literal["output_text"] = "output_text"
    text: str
    annotations: Sequence[Any] = ()
    logprobs: Sequence[Any] = ()


class InputText(_View):
    """A text that was sent."""

    type: Literal["input_text"] = "input_text"
    text: str


class OutputMessage(_View):
    """The answer, or one from before."""

    id: str
    type: Literal["message"] = "message"
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] = "assistant"
    content: Sequence[OutputText]


class InputItem(_View):
    """A message that was sent."""

    id: str
    type: Literal["message"] = "message"
    status: Literal["completed"] = "completed"
    role: Role
    content: Sequence[InputText]


class InputTokensDetails(_View):
    """What of the prompt was known already."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(_View):
    """What of the answer nobody sees."""

    reasoning_tokens: int = 0


class UsageOfResponse(_View):
    """Tokens that the response took."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails = OutputTokensDetails()
    total_tokens: int


class ResponseView(_View):
    """A response at one moment."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool
    error: ErrorOfResponse | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None = None
    metadata: Mapping[str, str]
    model: str
    output: Sequence[OutputMessage] = ()
    parallel_tool_calls: bool = True
    previous_response_id: str | None
    prompt_cache_key: str | None = None
    reasoning: None = None
    safety_identifier: str | None = None
    service_tier: str = Field(description="The tier of the lane that it really has.")
    store: bool
    temperature: float | None = Field(default=None, description="Null is the engine's own default.")
    text: Mapping[str, Any] = {"format": {"type": "text"}}
    tool_choice: str = "auto"
    tools: Sequence[Any] = ()
    top_logprobs: int | None = None
    top_p: float | None = Field(default=None, description="Null is the engine's own default.")
    truncation: str = "disabled"
    usage: UsageOfResponse | None = None
    user: str | None = None
    dropped_tokens: int = Field(description="Ours: what truncation dropped from the middle of the input.")

    @classmethod
    def begun(cls, asked: Asked, job: Job, status: Status) -> Self:
        """The view of a response that nothing is known of yet but its status."""
        previous = asked.previous_id
        return cls(
            id=openai_ids.shown(Prefix.RESPONSE, job.id),
            created_at=int(job.created_at.timestamp()),
            status=STATUS_OF_JOB[status],
            background=asked.background,
            instructions=asked.instructions,
            metadata=job.metadata or {},
            model=job.model,
            previous_response_id=openai_ids.shown(Prefix.RESPONSE, previous) if previous else None,
            service_tier=TIER_OF_LANE[job.lane],
            store=asked.stored,
            dropped_tokens=asked.dropped_tokens,
            **asked.body,
        )

    @classmethod
    def of(cls, asked: Asked, detail: JobDetail) -> Self:
        """The view of a response as it is now."""
        begun = cls.begun(asked, detail.job, detail.job.status)
        return begun.model_copy(update=_end(detail.job, detail.result))


def _end(job: Job, result: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is known once the job has ended."""
    if job.error_code and job.status.terminal:
        return {"error": _error(job)}
    if result is None:
        return {}
    known: dict[str, Any] = {"output": [message_of(job, result)], "usage": _usage(result)}
    if reason := INCOMPLETE.get(result["finish_reason"]):
        details = IncompleteDetails(reason=reason, finish_reason=result["finish_reason"])
        return known | {"status": "incomplete", "incomplete_details": details}
    finished_at = int(job.finished_at.timestamp()) if job.finished_at else None
    return known | {"completed_at": finished_at}


def message_of(job: Job, result: Mapping[str, Any]) -> OutputMessage:
    """The answer as the one item of the output."""
    choices = result["choices"] or [{}]
    text = OutputText(
        text=result["output"], logprobs=[_logprob(one) for one in choices[0].get("logprobs") or ()]
    )
    complete = result["finish_reason"] not in INCOMPLETE
    return OutputMessage(
        id=openai_ids.shown(Prefix.MESSAGE, job.id),
        status="completed" if complete else "incomplete",
        content=[text],
    )


def items_of(asked: Asked, job: Job) -> list[InputItem | OutputMessage]:
    """The conversation as items, the oldest first."""
    base = openai_ids.shown(Prefix.MESSAGE, job.id)
    return [_item(f"{base}_{place}", turn) for place, turn in enumerate(conversation(asked, job))]


def conversation(asked: Asked, job: Job) -> list[Message]:
    """The turns before the answer, those that truncation dropped too, but not the instructions."""
    messages, _ = from_json({**job.request, "messages": job.request.get(WHOLE, job.request["messages"])})
    return list(messages[1:] if (asked.instructions or "").strip() else messages)


def _item(item_id: str, turn: Message) -> InputItem | OutputMessage:
    if turn.role is Role.ASSISTANT:
        return OutputMessage(id=item_id, status="completed", content=[OutputText(text=turn.content)])
    return InputItem(id=item_id, role=turn.role, content=[InputText(text=turn.content)])


def _error(job: Job) -> ErrorOfResponse:
    code = job.error_code or ""
    return ErrorOfResponse(
        code="invalid_prompt" if code in _OF_THE_REQUEST else "server_error",
        message=job.error_message or code,
        type=code,
    )


def _usage(result: Mapping[str, Any]) -> UsageOfResponse:
    prompt, output = result["prompt_tokens"], result["output_tokens"]
    return UsageOfResponse(
        input_tokens=prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=result["cached_tokens"]),
        output_tokens=output,
        total_tokens=prompt + output,
    )


def _logprob(stored: Mapping[str, Any]) -> dict[str, Any]:
    top = [_token(token, logprob) for token, logprob in stored["top"]]
    return _token(stored["token"], stored["logprob"]) | {"top_logprobs": top}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode(errors="replace"))}
