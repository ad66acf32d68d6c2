"""The chunks of a chat completion's stream, made from its job's progress."""

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.domain.jobs import Job
from jobs.store.reads import JobDetail
from producer.api.errors import JobEnded
from producer.openai import chat
from producer.openai.clients import HEARTBEAT, sse
from producer.openai.following import Closing, Ended, Piece, Progress, Quiet, Running

DONE = b"data: [DONE]\n\n"


def failure(detail: JobDetail | None) -> JobEnded:
    """What a client is told of a job that ended without an answer; None is one that was deleted."""
    if detail is None:
        return JobEnded("deleted", "The job was deleted")
    job = detail.job
    return JobEnded(job.error_code or job.status.value, job.error_message or f"The job was {job.status}")


class Chunks:
    """One client's stream. Text is sent as it comes, log-probabilities with the end of their choice."""

    def __init__(self, job: Job, *, usage_at_the_end: bool) -> None:
        self._head = chat.head(job, "chat.completion.chunk")
        if usage_at_the_end:
            self._head["usage"] = None
        self._usage_at_the_end = usage_at_the_end
        self._attempt = 0  # whose text the client has; 0 is none
        self.over = False

    def begin(self) -> bytes:
        """What comes before anything happens."""
        return self._delta(0, {"role": "assistant", "content": "", "refusal": None})

    def of(self, progress: Progress) -> Iterator[bytes]:
        """What this progress makes known; nothing follows once the stream is `over`."""
        match progress:
            case Quiet():
                yield HEARTBEAT
            case Running(attempt):
                yield from self._of_attempt(attempt)
            case Piece(attempt, _, text):
                yield from self._of_attempt(attempt)
                if not self.over:
                    self._attempt = attempt
                    yield self._delta(0, {"content": text})
            case Closing():
                yield self._error(JobEnded("server_stopping", "The API is stopping"))
            case Ended(detail, attempt):
                yield from self._ended(detail, attempt)

    def _of_attempt(self, attempt: int) -> Iterator[bytes]:
        if self._attempt not in (0, attempt):
            yield self._error(JobEnded("attempt_lost", "The text so far is void: the work began again"))

    def _ended(self, detail: JobDetail | None, attempt: int) -> Iterator[bytes]:
        if detail is None or detail.result is None:
            yield self._error(failure(detail))
            return
        yield from self._of_attempt(attempt)
        if not self.over:
            yield from self._answered(detail.result)

    def _answered(self, result: Mapping[str, Any]) -> Iterator[bytes]:
        for index, choice in enumerate(chat.choices(result)):
            if index:  # only the first was followed
                yield self._delta(index, {"role": "assistant", "content": choice["text"], "refusal": None})
            yield self._delta(index, {}, **chat.ended(choice))
        if self._usage_at_the_end:
            yield sse({**self._head, "choices": [], "usage": chat.usage(result)})
        yield DONE
        self.over = True

    def _delta(self, index: int, delta: Mapping[str, Any], **how: Any) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **how}
        return sse({**self._head, "choices": [choice]})

    def _error(self, error: JobEnded) -> bytes:
        self.over = True
        return sse(error.body().model_dump())
