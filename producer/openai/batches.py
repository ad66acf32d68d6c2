"""Batches as OpenAI's clients know them: how one is asked for, and how it is shown."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from jobs.domain import openai_ids
from jobs.domain.openai_ids import Prefix
from jobs.store.batches import Batch
from producer.openai import bodies
from producer.openai.files import MAX_EXPIRES_S, MIN_EXPIRES_S, unix
from producer.refusals import Code, Refusal
from producer.request import MetadataKey, MetadataValue

WINDOWS_S: Mapping[str, int] = {"1h": 3_600, "6h": 21_600, "24h": 86_400}


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class OutputExpiry(_Form):
    """When a batch's files expire."""

    anchor: Literal["created_at"] = Field(description="A file's own creation.")
    seconds: int = Field(ge=MIN_EXPIRES_S, le=MAX_EXPIRES_S)


class CreateBatch(_Form):
    """A request for a batch; unknown fields are refused."""

    input_file_id: str = Field(description="A file of purpose `batch`.")
    endpoint: str = Field(description=f"One of {', '.join(bodies.ENDPOINTS)}.")
    completion_window: Literal["1h", "6h", "24h"] = Field(description="What is not done by then expires.")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    output_expires_after: OutputExpiry | None = None

    def check(self) -> None:
        """Raise `Refusal` where the endpoint takes no batches."""
        if self.endpoint not in bodies.ENDPOINTS:
            raise Refusal(
                Code.INVALID_VALUE,
                "There are no batches for this endpoint",
                field="endpoint",
                limit=", ".join(bodies.ENDPOINTS),
                remedy="Use one that is named.",
            )


class RequestCounts(BaseModel):
    """How many of a batch's requests there are; `failed` has those that expired or were cancelled too."""

    total: int
    completed: int
    failed: int


class BatchView(BaseModel):
    """A batch as it stands now."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: Mapping[str, Any] | None = Field(
        description="Why it failed: each bad line's number, `custom_id` and field; `total` counts them all."
    )
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: Mapping[str, Any] | None = Field(description="Tokens of all answers, once the batch has ended.")
    metadata: Mapping[str, str] | None
    progress: float = Field(description="The share of the requests that have ended, 0 to 1.")
    estimated_finish_at: int | None = Field(description="At the rate so far; null where that is not known.")

    @classmethod
    def of(cls, batch: Batch) -> Self:
        """The view of a stored batch."""
        times = {
            name: unix(moment)
            for name in cls.model_fields
            if name.endswith("_at") and (moment := getattr(batch, name, None))
        }
        nothing = dict.fromkeys(name for name in cls.model_fields if name.endswith(("_at", "_file_id")))
        files = {
            name: openai_ids.shown(Prefix.FILE, own)
            for name in ("input_file_id", "output_file_id", "error_file_id")
            if (own := getattr(batch, name))
        }
        return cls.model_validate(
            {
                **nothing,
                **times,
                **files,
                "id": openai_ids.shown(Prefix.BATCH, batch.id),
                "endpoint": batch.endpoint,
                "model": batch.model,
                "errors": batch.errors,
                "completion_window": batch.completion_window,
                "status": batch.status.value,
                "request_counts": RequestCounts(
                    total=batch.total, completed=batch.completed, failed=batch.failed
                ),
                "usage": _usage(batch.usage),
                "metadata": batch.metadata,
                "progress": _progress(batch),
                "estimated_finish_at": _estimated_finish_at(batch),
            }
        )


def _usage(usage: Mapping[str, int] | None) -> Mapping[str, Any] | None:
    if usage is None:
        return None
    prompt, output = usage["prompt_tokens"], usage["output_tokens"]
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": usage["cached_tokens"]},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + output,
    }


def _progress(batch: Batch) -> float:
    return round((batch.completed + batch.failed) / batch.total, 4) if batch.total else 0.0


def _estimated_finish_at(batch: Batch) -> int | None:
    """When the last request will have ended, should the rest take as long each as those before."""
    ended = batch.completed + batch.failed
    if batch.status.value != "in_progress" or batch.in_progress_at is None or not ended:
        return None
    left_s = (batch.seen_at - batch.in_progress_at).total_seconds() / ended * (batch.total - ended)
    return unix(batch.seen_at + timedelta(seconds=left_s))


def not_found() -> Refusal:
    """The refusal for a batch that the tenant does not have, whether or not another has it."""
    return Refusal(Code.BATCH_NOT_FOUND, "No such batch", field="batch_id")
