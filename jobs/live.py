"""The hints that travel through Redis while a job runs: their names, their form and their bounds.

Each job has a stream of events, whose entry ids are `attempt-sequence` and so only rise, and a channel
that carries the same events to who listens now. Both may vanish at any time: Postgres is the truth.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

CANCEL_CHANNEL = "trilane:cancel"  # job ids whose sequence should be freed
STREAM_MAXLEN = 4_096
STREAM_EXPIRY_S = 3_600


class LiveEvent(StrEnum):
    """What an event says; its data is in brackets."""

    STATUS = "status"  # {"status", "attempt"}
    TEXT = "text"  # {"text"}: what came since the last event
    SNAPSHOT = "snapshot"  # {"text"}: all of the attempt's text so far, in place of what came before
    RESET = "reset"  # {"attempt"}: a new attempt, the text so far is void
    ENDED = "ended"  # {}: the job has ended and its row says how; on the channel only, without an id


@dataclass(frozen=True, slots=True)
class Event:
    """One event; `id` is `attempt-sequence`, None for `ended`."""

    id: str | None
    event: LiveEvent
    data: Mapping[str, Any]


ENDED = Event(None, LiveEvent.ENDED, {})


def stream_key(job_id: str) -> str:
    """The key of a job's stream."""
    return f"trilane:events:{job_id}"


def channel(job_id: str) -> str:
    """The channel of a job's events."""
    return f"trilane:live:{job_id}"


def job_of_channel(name: str) -> str:
    """The job whose channel this is."""
    return name.rpartition(":")[2]


def to_fields(event: Event) -> dict[str, str]:
    """An event as fields of a stream entry, whose id carries the event's."""
    return {"event": event.event.value, "data": json.dumps(event.data)}


def from_fields(entry_id: str, fields: Mapping[str, str]) -> Event:
    """The inverse of `to_fields`."""
    return Event(entry_id, LiveEvent(fields["event"]), json.loads(fields["data"]))


def to_message(event: Event) -> str:
    """An event as a message on the job's channel."""
    return json.dumps({"id": event.id, "event": event.event.value, "data": event.data})


def from_message(message: str | bytes) -> Event:
    """The inverse of `to_message`."""
    value = json.loads(message)
    return Event(value["id"], LiveEvent(value["event"]), value["data"])


def order(event_id: str | None) -> tuple[int, int]:
    """What the ids of a job's events sort by; None, the id of nothing, comes before all."""
    attempt, _, sequence = (event_id or "0-0").partition("-")
    return int(attempt), int(sequence)
