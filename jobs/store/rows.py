"""Turns rows of the jobs table into domain values."""

from sqlalchemy import Row

from jobs.domain.jobs import Job, Status, Surface, Webhook
from jobs.domain.lanes import Kind

JOB_COLUMNS = (
    "id, tenant_id, kind, model, lane, priority, queue, status, request, prompt_tokens, attempt, failures,"
    " max_attempts, redrives, metadata, webhook_url, webhook_events, webhook_secret, created_at, deadline,"
    " not_before, claimed_at, finished_at, error_code, error_message, surface"
)

# Since when a job could have been answered, in a statement where its row is `j`; NULLs do not count.
ASKED_AT = "greatest(j.created_at, j.not_before, j.redriven_at)"


def job_of(row: "Row[tuple[object, ...]]") -> Job:
    """A `Job` from a row that has `JOB_COLUMNS`."""
    values = dict(row._mapping)
    url, events, secret = (values.pop(f"webhook_{name}") for name in ("url", "events", "secret"))
    values["webhook"] = Webhook(url, tuple(events or ()), secret) if url else None
    values["kind"], values["status"] = Kind(values["kind"]), Status(values["status"])
    values["surface"] = Surface(values["surface"])
    return Job(**{name: values[name] for name in Job.__dataclass_fields__})
