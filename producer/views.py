"""Jobs as callers see them, over HTTP and from Python alike."""

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from jobs.domain.jobs import Job, Status
from jobs.domain.lanes import Kind
from jobs.domain.outcomes import FinishReason
from jobs.store.reads import JobDetail


class _View(BaseModel):
    model_config = ConfigDict(frozen=True, from_attributes=True)


class ErrorOfJob(_View):
    """Why a job failed or expired."""

    code: str
    message: str


class WebhookOfJob(_View):
    """Where the job's events go; a secret is never shown."""

    url: str
    events: Sequence[str]


class LogprobOfToken(_View):
    """One token, its natural log-probability, and the likeliest tokens in its place."""

    token: str
    logprob: float
    top: Sequence[tuple[str, float]]


class ChoiceOfResult(_View):
    """One of several answers."""

    text: str
    finish_reason: FinishReason
    logprobs: Sequence[LogprobOfToken] | None


class ResultOfJob(_View):
    """The text, and what it took in tokens."""

    output: str
    finish_reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    choices: Sequence[ChoiceOfResult] | None = Field(
        description="Every answer, where several or log-probabilities were asked for."
    )
    windows: int = Field(description="Pieces in which a long document was answered; 0: in one.")


class LatencyOfAttempt(_View):
    """Where the time of one attempt went, in milliseconds; null where that was not reached or not measured.

    queue: ready until claimed. ttft: ready until the first token. total: accepted until recorded.
    """

    attempt: int
    outcome: str
    lane: str
    worker: str | None
    gpu: str | None
    engine: str | None
    precision: str | None
    queue_ms: float | None
    claim_ms: float | None
    admission_ms: float | None
    engine_queue_ms: float | None
    prefill_ms: float | None
    ttft_ms: float | None
    decode_ms: float | None
    record_ms: float | None
    total_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    output_tokens: int | None
    batch_size: int | None
    kv_usage: float | None
    preemptions: int | None
    recorded_at: datetime


class JobSummary(_View):
    """A job without its text and latency, as lists show it."""

    id: uuid.UUID
    object: Literal["job"] = "job"
    kind: Kind
    model: str
    lane: str
    routed: str | None = Field(
        description="Why it is in this lane, or in windows, where kind and length alone do not tell."
    )
    priority: int = Field(description="0 is most urgent.")
    status: Status
    attempt: int = Field(description="How often it was started.")
    failures: int
    max_attempts: int = Field(description="Failures after which it has failed.")
    redrives: int
    prompt_tokens: int = Field(description="As counted when it was accepted.")
    metadata: Mapping[str, str] | None
    webhook: WebhookOfJob | None
    created_at: datetime
    deadline: datetime
    not_before: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    error: ErrorOfJob | None

    @classmethod
    def of(cls, job: Job) -> Self:
        """The view of a stored job."""
        return cls.model_validate(_fields(job))


class JobView(JobSummary):
    """A job with its result, once it succeeded, and the latency of each of its attempts."""

    result: ResultOfJob | None
    latency: Sequence[LatencyOfAttempt]

    @classmethod
    def of_detail(cls, detail: JobDetail) -> Self:
        """The view of a stored job with what hangs on it."""
        return cls.model_validate(
            {**_fields(detail.job), "result": detail.result, "latency": list(detail.latency)}
        )

    @classmethod
    def accepted(cls, job: Job) -> Self:
        """The view of a job that nothing has happened to yet."""
        return cls.of_detail(JobDetail(job, None, ()))


def _fields(job: Job) -> dict[str, Any]:
    fields = {name: getattr(job, name) for name in Job.__dataclass_fields__}
    error = ErrorOfJob(code=job.error_code, message=job.error_message or "") if job.error_code else None
    return fields | {"error": error, "routed": job.request.get("routed")}
