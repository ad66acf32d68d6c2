"""The events a job can call back with; a new one is one entry here."""

from enum import StrEnum

from jobs.domain.jobs import Status


class EventType(StrEnum):
    """Types of webhook events."""

    STARTED = "job.started"
    SUCCEEDED = "job.succeeded"
    FAILED = "job.failed"
    CANCELLED = "job.cancelled"
    EXPIRED = "job.expired"


EVENT_OF_STATUS = {
    Status.RUNNING: EventType.STARTED,
    Status.SUCCEEDED: EventType.SUCCEEDED,
    Status.FAILED: EventType.FAILED,
    Status.CANCELLED: EventType.CANCELLED,
    Status.EXPIRED: EventType.EXPIRED,
}

DEFAULT_EVENTS = (EventType.SUCCEEDED, EventType.FAILED, EventType.CANCELLED, EventType.EXPIRED)
