"""The events of a response's stream: the same however the text came, and gone on with anywhere."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.jobs import Job, Status, Surface
from jobs.domain.lanes import Kind
from jobs.store.reads import JobDetail
from jobs.store.responses import Asked
from producer.openai.following import Closing, Ended, Piece, Progress, Running
from producer.openai.responses_events import SPACING, Events

ID = uuid.UUID("0198a000-0000-7000-8000-000000000001")
NOW = datetime(2026, 12, 1, tzinfo=UTC)
JOB = Job(
    id=ID, tenant_id=ID, kind=Kind.TICKET, model="m", lane="warm", priority=5, queue="warm.normal",
    status=Status.QUEUED, request={"messages": [], "sampling": {}}, prompt_tokens=9, attempt=0, failures=0,
    max_attempts=3, redrives=0, metadata=None, webhook=None, created_at=NOW, deadline=NOW, not_before=None,
    claimed_at=None, finished_at=NOW, error_code=None, error_message=None, surface=Surface.RESPONSE,
)  # fmt: skip
ASKED = Asked(ID, ID, {}, background=True, stored=True)


def ended(text: str, attempt: int = 1) -> Ended:
    """The end with an answer."""
    result = {
        "attempt": attempt, "output": text, "finish_reason": "stop", "prompt_tokens": 9, "cached_tokens": 0,
        "output_tokens": 3, "choices": None,
    }  # fmt: skip
    return Ended(JobDetail(replace(JOB, status=Status.SUCCEEDED, attempt=attempt), result, ()), attempt)


def ended_as(status: Status, attempt: int, **fields: Any) -> Ended:
    """The end without an answer."""
    return Ended(JobDetail(replace(JOB, status=status, attempt=attempt, **fields), None, ()), attempt)


def answered(pieces: Sequence[str], attempt: int = 1) -> list[Progress]:
    """The progress of an answer that comes in these pieces."""
    starts = [len("".join(pieces[:place])) for place in range(len(pieces))]
    texts = [Piece(attempt, start, piece) for start, piece in zip(starts, pieces, strict=True) if piece]
    return [Running(attempt), *texts, ended("".join(pieces), attempt)]


def told(progress: Sequence[Progress], after: int | None = None) -> list[dict[str, Any]]:
    """The events of all this progress, to their end."""
    events = Events(ASKED, JOB, after)
    found = list(events.begin())
    for one in progress:
        if not events.over:
            found += events.of(one)
    return [dict(event) for event in found]


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def numbers(events: Sequence[dict[str, Any]]) -> list[int]:
    return [event["sequence_number"] for event in events]


def text_of(events: Sequence[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if "delta" in event)


def test_the_events_of_an_answer_come_in_order() -> None:
    events = told(answered(["A que", "ue"]))
    assert kinds(events) == [
        "created", "queued", "in_progress", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert numbers(events) == [0, 1, 2, 3, 4, 8, 11, 12, 13, 14, 15]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "A queue"


def test_an_empty_answer_has_all_events_but_deltas() -> None:
    assert numbers(told(answered([]))) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


@given(st.lists(st.text(max_size=9), max_size=8), st.integers(1, 3))
def test_events_do_not_depend_on_how_the_text_came(pieces: list[str], attempt: int) -> None:
    at_once = told([ended("".join(pieces), attempt)])
    assert told(answered(pieces, attempt)) == at_once
    assert numbers(at_once) == sorted(set(numbers(at_once)))
    assert text_of(at_once) == "".join(pieces)


@given(st.lists(st.text(max_size=9), max_size=8), st.integers(1, 3), st.data())
def test_a_stream_goes_on_behind_any_event(pieces: list[str], attempt: int, data: st.DataObject) -> None:
    whole = told(answered(pieces, attempt))
    place = data.draw(st.integers(0, len(whole) - 1))
    after = whole[place]["sequence_number"]
    assert told(answered(pieces, attempt), after) == whole[place + 1 :]


def test_the_rest_of_the_text_waits_for_the_end_at_most() -> None:
    assert text_of(told([Running(1), Piece(1, 0, "A queue")])) == "A qu"


def test_an_attempt_that_told_no_text_is_forgotten() -> None:
    events = told([Running(1), *answered(["Yes."], attempt=2)])
    assert kinds(events)[:4] == ["created", "queued", "in_progress", "output_item.added"]
    assert numbers(events)[3] == SPACING + 3


@pytest.mark.parametrize("next_one", [Running(2), Piece(2, 0, "No"), ended("No", 2)])
def test_an_attempt_that_told_text_ends_the_stream_when_it_is_lost(next_one: Progress) -> None:
    events = told([Running(1), Piece(1, 0, "Yes."), next_one])
    assert events[-1]["type"] == "error"
    assert events[-1]["code"] == "attempt_lost"
    assert events[-1]["sequence_number"] == events[-2]["sequence_number"] + 1
    again = told([next_one], after=events[-1]["sequence_number"])
    assert [event["code"] for event in again] == ["attempt_lost"]


def test_a_client_that_only_saw_the_item_begin_is_told_too() -> None:
    assert [event["type"] for event in told(answered(["No"], 2), after=3)] == ["error"]


@pytest.mark.parametrize("status", [Status.FAILED, Status.EXPIRED])
def test_a_failure_ends_the_stream_behind_all_text(status: Status) -> None:
    end = ended_as(status, 1, error_code="engine_error", error_message="broke")
    events = told([Running(1), Piece(1, 0, "x" * 40), end])
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["sequence_number"] == SPACING - 1
    assert events[-1]["response"]["error"] == {
        "code": "server_error", "message": "broke", "type": "engine_error"
    }  # fmt: skip
    assert told([end], after=SPACING - 1) == []


def test_a_failure_after_a_lost_attempt_is_told_as_one() -> None:
    assert kinds(told([ended_as(Status.FAILED, 2, error_code="x")], after=8)) == ["failed"]


def test_a_cancel_ends_the_stream_with_an_error() -> None:
    events = told([ended_as(Status.CANCELLED, 0)])
    assert [event.get("code") for event in events] == [None, None, "response_cancelled"]
    assert told([ended_as(Status.CANCELLED, 0)], after=events[-1]["sequence_number"]) == []


def test_a_deletion_ends_the_stream_with_an_error() -> None:
    assert told([Ended(None, 0)])[-1]["code"] == "response_deleted"


def test_nothing_is_missed_behind_the_error_of_a_stopping_server() -> None:
    events = told([Running(1), Piece(1, 0, "Yes, it"), Closing()])
    assert events[-1]["code"] == "server_stopping"
    rest = told(answered(["Yes, it is."]), after=events[-1]["sequence_number"])
    assert text_of(events) + text_of(rest) == "Yes, it is."


def test_a_number_of_no_event_loses_no_text() -> None:
    assert text_of(told(answered(["Orderly."]), after=4 + 3)) == "erly."
