"""What an attempt can end as: values, never exceptions."""

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why the text ends, by OpenAI's names."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"  # a banned phrase came next
    REPETITION = "repetition"  # ours: the text went in circles


class CloseReason(StrEnum):
    """Why an attempt was closed before its text ended."""

    CANCEL = "cancel"  # the tenant cancelled the job; the row already says so
    DEADLINE = "deadline"
    TIME_LIMIT = "time_limit"
    SHUTDOWN = "shutdown"  # handed back to the queue, the budget untouched
    LEASE_LOST = "lease_lost"  # somebody else owns the job now


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one attempt; `cached_tokens` is the part of the prompt that prefix caching spared."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class EngineTimings:
    """What the engine itself measured, in milliseconds; None where it cannot tell."""

    engine_queue_ms: float | None = None
    prefill_ms: float | None = None
    decode_ms: float | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One token of an answer, its log-probability (natural), and the likeliest tokens in its place."""

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several answers to a request, or the one answer with its log-probabilities."""

    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenLogprob, ...] | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The engine ended the text by itself.

    `choices` holds every answer, the streamed one first, where several or log-probabilities were asked for;
    else it is empty. `windows` is the number of pieces that a long document was answered in, else 0.
    """

    finish_reason: FinishReason
    usage: Usage
    timings: EngineTimings = field(default_factory=EngineTimings)
    choices: tuple[Choice, ...] = ()
    windows: int = 0


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request can never succeed as it is (a prompt too long): the job fails at once."""

    code: str
    message: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Retryable:
    """This attempt failed by no fault of the request that is known: the budget is charged."""

    code: str
    message: str
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The attempt was closed from outside, for the reason given."""

    reason: CloseReason
    usage: Usage = field(default_factory=Usage)


Outcome = Completed | Rejected | Retryable | Cancelled
