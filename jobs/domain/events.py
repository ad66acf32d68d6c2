"""The events that webhooks tell of: a job's own, and OpenAI's for endpoints; a new one is one entry here."""

from enum import StrEnum

from jobs.domain.jobs import Status
from jobs.domain.openai_ids import Prefix
from jobs.domain.outcomes import FinishReason


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


class EndpointEvent(StrEnum):
    """Types of events that a tenant's webhook endpoints may ask for, by OpenAI's names."""

    RESPONSE_COMPLETED = "response.completed"
    RESPONSE_FAILED = "response.failed"
    RESPONSE_CANCELLED = "response.cancelled"
    RESPONSE_INCOMPLETE = "response.incomplete"
    BATCH_COMPLETED = "batch.completed"
    BATCH_FAILED = "batch.failed"
    BATCH_EXPIRED = "batch.expired"
    BATCH_CANCELLED = "batch.cancelled"

    @property
    def prefix(self) -> Prefix:
        """What the id in the event's data is of."""
        return Prefix.RESPONSE if self.startswith("response.") else Prefix.BATCH


_RESPONSE_EVENTS = {
    Status.SUCCEEDED: EndpointEvent.RESPONSE_COMPLETED,
    Status.FAILED: EndpointEvent.RESPONSE_FAILED,
    Status.EXPIRED: EndpointEvent.RESPONSE_FAILED,
    Status.CANCELLED: EndpointEvent.RESPONSE_CANCELLED,
}


def response_event(status: Status, finish_reason: str | None) -> EndpointEvent | None:
    """What a response's job tells of by its status now; None while it has not ended."""
    if status is Status.SUCCEEDED and finish_reason not in (None, FinishReason.STOP):
        return EndpointEvent.RESPONSE_INCOMPLETE
    return _RESPONSE_EVENTS.get(status)
