"""What a run of the demo came to: a row per job, the webhooks, the chat's times, and what went wrong."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Self


@dataclass(frozen=True)
class JobRow:
    """One job as the table and the JSON show it; times in milliseconds, None where they were not reached."""

    id: str
    kind: str
    lane: str
    priority: int
    status: str
    attempt: int
    prompt_tokens: int
    output_tokens: int | None
    queue_ms: float | None
    ttft_ms: float | None
    total_ms: float | None
    output: str | None

    @classmethod
    def of(cls, view: Mapping[str, Any]) -> Self:
        """The row of a job as `GET /v1/jobs/{id}` answers it, with the times of its last attempt."""
        latency = view["latency"][-1] if view["latency"] else {}
        found = {**latency, **view, **(view["result"] or {})}
        values: dict[str, Any] = {field.name: found.get(field.name) for field in fields(cls)}
        return cls(**values)


@dataclass(frozen=True)
class Webhooks:
    """How many different webhooks should have come, came, and came with a right signature."""

    expected: int
    delivered: int
    verified: int


@dataclass(frozen=True)
class Account:
    """The whole run. `alone` and `beside` are the chat turns on the idle stack and beside the reports."""

    alone: Sequence[JobRow]
    reports: Sequence[JobRow]
    tickets: Sequence[JobRow]
    beside: Sequence[JobRow]
    errors: Mapping[str, str]  # of jobs by id
    webhooks: Webhooks
    urls: Mapping[str, str]
    seconds: Mapping[str, float]

    @property
    def jobs(self) -> list[JobRow]:
        """All jobs in the order in which they were submitted."""
        return [*self.alone, *self.reports, *self.tickets, *self.beside]

    def problems(self) -> list[str]:
        """Why the run is not a success; empty if it is one."""
        found = [
            f"{job.kind} {job.id} is {job.status}" + (f": {why}" if (why := self.errors.get(job.id)) else "")
            for job in self.jobs
            if job.status != "succeeded"
        ]
        webhooks = self.webhooks
        if not webhooks.expected == webhooks.delivered == webhooks.verified:
            found.append(
                f"{webhooks.expected} webhooks were expected, {webhooks.delivered} were delivered"
                f" and {webhooks.verified} of them verified"
            )
        return found

    def chat_ttft_ms(self) -> tuple[float, float] | None:
        """The turns' median time to first token, alone and beside the reports; None if one is missing."""
        rounds = [[job.ttft_ms for job in turns] for turns in (self.alone, self.beside)]
        known = [[ttft_ms for ttft_ms in times if ttft_ms is not None] for times in rounds]
        if known != rounds:
            return None
        return median(known[0]), median(known[1])

    def as_json(self) -> dict[str, Any]:
        """The object that `--json` writes."""
        return {
            "ok": not self.problems(),
            "jobs": [asdict(job) for job in self.jobs],
            "webhooks": asdict(self.webhooks),
            "urls": dict(self.urls),
            "seconds": dict(self.seconds),
        }
