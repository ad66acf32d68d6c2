"""A job, its states, and the one table of moves between them."""

import hashlib
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from jobs.domain.lanes import Kind


class Status(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended; only a redrive of a failed job leaves such a state."""
        return self not in (Status.QUEUED, Status.RUNNING)


class Move(StrEnum):
    """Everything that can happen to a job after it was accepted."""

    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    RETRY = "retry"
    LOSE_LEASE = "lose_lease"
    HAND_BACK = "hand_back"
    CANCEL = "cancel"
    EXPIRE = "expire"
    REDRIVE = "redrive"


class Surface(StrEnum):
    """The API that a job came through, which decides how it is shown and what its end is told as."""

    JOB = "job"
    RESPONSE = "response"
    CHAT = "chat"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Rule:
    """From where a move may start, where it ends, and whether it charges the job's budget of failures."""

    sources: frozenset[Status]
    target: Status
    charges: bool = False


_QUEUED, _RUNNING, _FAILED = (
    frozenset({Status.QUEUED}),
    frozenset({Status.RUNNING}),
    frozenset({Status.FAILED}),
)

MOVES: Mapping[Move, Rule] = {
    Move.CLAIM: Rule(_QUEUED, Status.RUNNING),
    Move.SUCCEED: Rule(_RUNNING, Status.SUCCEEDED),
    Move.FAIL: Rule(_RUNNING, Status.FAILED, charges=True),
    Move.RETRY: Rule(_RUNNING, Status.QUEUED, charges=True),
    Move.LOSE_LEASE: Rule(_RUNNING, Status.QUEUED, charges=True),
    Move.HAND_BACK: Rule(_RUNNING, Status.QUEUED),
    Move.CANCEL: Rule(_QUEUED | _RUNNING, Status.CANCELLED),
    Move.EXPIRE: Rule(_QUEUED | _RUNNING, Status.EXPIRED),
    Move.REDRIVE: Rule(_FAILED, Status.QUEUED),
}


@dataclass(frozen=True, slots=True)
class Webhook:
    """Where a job's events go. `secret` is the encrypted form; None signs with the tenant's secret."""

    url: str
    events: tuple[str, ...]
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class NewJob:
    """A request that was checked and routed, ready to be stored."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    kind: Kind
    model: str
    lane: str
    priority: int
    queue: str
    request: Mapping[str, Any]
    prompt_tokens: int
    deadline: datetime
    max_attempts: int = 3
    not_before: datetime | None = None
    prefix: int = 0  # a hash of the prompt's beginning, so that equal beginnings travel together
    metadata: Mapping[str, str] | None = None
    webhook: Webhook | None = None
    idempotency_key: str | None = None
    payload_hash: bytes | None = None
    surface: Surface = Surface.JOB


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is stored. `attempt` only rises; `failures` is what the budget was charged."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    kind: Kind
    model: str
    lane: str
    priority: int
    queue: str
    status: Status
    request: Mapping[str, Any]
    prompt_tokens: int
    attempt: int
    failures: int
    max_attempts: int
    redrives: int
    metadata: Mapping[str, str] | None
    webhook: Webhook | None
    created_at: datetime
    deadline: datetime
    not_before: datetime | None
    claimed_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    surface: Surface


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at one job, under its lease: all a worker needs to run it.

    By the database's clock at the claim: `queue_ms` since the job was ready, `age_ms` since it was asked
    for (accepted, its `not_before` or its redrive, the last of them), `deadline_in_s` until its deadline.
    """

    id: uuid.UUID
    attempt: int
    failures: int
    max_attempts: int
    lane: str
    priority: int
    model: str
    request: Mapping[str, Any]
    prompt_tokens: int
    prefix: int
    queue_ms: float
    age_ms: float
    deadline_in_s: float


PREFIX_CHARS = 512


def prefix_of(text: str) -> int:
    """A signed 64-bit hash of a prompt's first `PREFIX_CHARS` characters."""
    digest = hashlib.blake2b(text[:PREFIX_CHARS].encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def new_id() -> uuid.UUID:
    """A UUIDv7 (RFC 9562, 5.7): 48 bits of Unix milliseconds, then random bits, so that ids sort by time."""
    value = int.from_bytes((time.time_ns() // 1_000_000).to_bytes(6, "big") + os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    return uuid.UUID(int=value & ~(0x3 << 62) | 0x2 << 62)


def least_id(at: datetime, later_s: float = 0.0) -> uuid.UUID:
    """The smallest id that `new_id` makes so much later than `at`; before 1970 the smallest of all."""
    milliseconds = max(int((at.timestamp() + later_s) * 1_000), 0)
    return uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | 0x2 << 62)


def retry_delay_s(failures: int, jitter: float, base_s: float = 1.0, cap_s: float = 60.0) -> float:
    """Seconds until a failed attempt is tried again: exponential, capped, with full jitter in [0.5, 1).

    `failures` counts this one (1 or more); `jitter` is a random number in [0, 1).
    """
    ceiling = min(base_s * 2.0 ** (failures - 1), cap_s)
    return float(ceiling * (0.5 + jitter / 2))
