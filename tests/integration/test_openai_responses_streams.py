"""The streams of responses by the official client: in order, gone on with, ended by what befalls them."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from jobs.domain.jobs import Move
from jobs.live import LiveEvent
from producer.openai.responses_events import SPACING
from tests.api import Api
from tests.processes import Processes
from tests.responses_rig import MODEL, SLOW, Rig


@pytest.fixture
def rig(api: Api) -> Rig:
    return Rig(api)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


IN_ORDER = [
    "response.created", "response.queued", "response.in_progress", "response.output_item.added",
    "response.content_part.added", "response.output_text.delta", "response.output_text.done",
    "response.content_part.done", "response.output_item.done", "response.completed",
]  # fmt: skip


@pytest.mark.parametrize("background", [True, False])
def test_the_typed_events_come_in_order_while_the_text_is_made(
    rig: Rig, processes: Processes, background: bool
) -> None:
    processes.worker("warm", time_scale=SLOW, output_tokens=6)
    with rig.stream(background=background, max_output_tokens=8) as stream:
        events = list(stream)
    assert list(dict.fromkeys(event.type for event in events)) == IN_ORDER
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))
    last = events[-1]
    assert last.type == "response.completed"
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    assert last.response.output_text == "".join(deltas)
    assert [event.to_dict() for event in rig.client.responses.retrieve(last.response.id, stream=True)] == [
        event.to_dict() for event in events
    ]


def test_the_async_client_streams_waits_and_follows(api: Api, rig: Rig, processes: Processes) -> None:
    processes.worker("hot", time_scale=SLOW, output_tokens=4)

    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0) as client:
            given: Any = {"model": MODEL, "input": "Hello", "service_tier": "fast", "max_output_tokens": 8}
            waited, streamed = await asyncio.gather(
                client.responses.create(**given), client.responses.create(**given, stream=True)
            )
            events = [event async for event in streamed]
            assert waited.status == "completed"
            assert waited.service_tier == "priority"
            assert events[-1].type == "response.completed"
            assert events[-1].response.output_text == waited.output_text
            async with client.responses.stream(**given) as managed:
                final = await managed.get_final_response()
            assert final.output_text == waited.output_text
            queued = await client.responses.create(
                model=MODEL, input="Hello", service_tier="flex", background=True
            )
            cancelled = await client.responses.cancel(queued.id)
            assert (queued.status, cancelled.status) == ("queued", "cancelled")
            await client.responses.delete(queued.id)
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(queued.id)

    asyncio.run(run())


def started(rig: Rig, *texts: str, **given: Any) -> str:
    """A response whose first attempt has told these texts."""
    created = rig.create(**given)
    rig.worker.claim(rig.job_of(created.id))
    rig.tell(created.id, "1-1", LiveEvent.STATUS, status="running", attempt=1)
    for place, piece in enumerate(texts):
        rig.tell(created.id, f"1-{place + 2}", LiveEvent.TEXT, text=piece)
    return created.id


def test_a_lost_connection_is_gone_on_with_live_and_after_the_end(rig: Rig) -> None:
    response_id = started(rig, "A queue ", "is a ")
    seen: list[Any] = []
    with rig.client.responses.retrieve(response_id, stream=True) as stream:
        for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta" and "".join(deltas(seen)) == "A queue is a":
                break
    after = seen[-1].sequence_number
    with rig.client.responses.retrieve(response_id, stream=True, starting_after=after) as stream:
        rig.end(response_id, "A queue is a line.")
        live = list(stream)
    assert "".join(deltas(seen + live)) == "A queue is a line."
    assert live[-1].type == "response.completed"
    later = list(rig.client.responses.retrieve(response_id, stream=True, starting_after=after))
    assert [event.to_dict() for event in later] == [event.to_dict() for event in live]
    numbers = [event.sequence_number for event in [*seen, *live]]
    assert numbers == sorted(set(numbers))
    # The client's own way asks for all events, and leaves out those that it had.
    with rig.client.responses.stream(response_id=response_id, starting_after=after) as managed:
        assert [event.sequence_number for event in managed] == numbers[numbers.index(after) + 1 :]
        assert managed.get_final_response().output_text == "A queue is a line."


def deltas(events: list[Any]) -> list[str]:
    return [event.delta for event in events if event.type == "response.output_text.delta"]


def test_a_stream_whose_attempt_is_lost_after_text_ends_with_an_error(rig: Rig) -> None:
    response_id = started(rig, "A queue ")
    with rig.client.responses.retrieve(response_id, stream=True) as stream:
        seen = []
        for event in stream:
            seen.append(event)
            if len(deltas(seen)) == 2 and seen[-1].type != "error":
                rig.move(response_id, Move.HAND_BACK)
                rig.worker.claim(rig.job_of(response_id))
                rig.tell(response_id, "2-1", LiveEvent.RESET, attempt=2)
    error = seen[-1]
    assert error.type == "error"
    assert error.code == "attempt_lost"
    numbers = [event.sequence_number for event in seen]
    assert numbers == sorted(set(numbers))
    rig.end(response_id, "A line.", attempt=2)
    whole = list(rig.client.responses.retrieve(response_id, stream=True))
    assert "".join(deltas(whole)) == "A line."
    assert whole[-1].sequence_number > SPACING
    resumed = rig.client.responses.retrieve(response_id, stream=True, starting_after=error.sequence_number)
    assert [event.type for event in resumed] == ["error"]


def test_an_attempt_lost_before_any_text_is_no_matter(rig: Rig) -> None:
    response_id = started(rig)
    with rig.client.responses.retrieve(response_id, stream=True) as stream:
        events = iter(stream)
        kinds = [next(events).type for _ in range(3)]
        assert kinds == IN_ORDER[:3]
        rig.move(response_id, Move.HAND_BACK)
        rig.worker.claim(rig.job_of(response_id))
        rig.tell(response_id, "2-1", LiveEvent.RESET, attempt=2)
        rig.tell(response_id, "2-2", LiveEvent.TEXT, text="A line.")
        rig.end(response_id, "A line.", attempt=2)
        assert list(events)[-1].type == "response.completed"


def test_a_stream_that_begins_late_shows_the_newest_attempt_alone(rig: Rig) -> None:
    response_id = started(rig, "Void text")
    rig.move(response_id, Move.HAND_BACK)
    rig.worker.claim(rig.job_of(response_id))
    rig.tell(response_id, "2-1", LiveEvent.RESET, attempt=2)
    rig.tell(response_id, "2-2", LiveEvent.TEXT, text="A li")
    with rig.client.responses.retrieve(response_id, stream=True) as stream:
        seen = []
        for event in stream:
            seen.append(event)
            if deltas(seen) == ["A li"] and event.type == "response.output_text.delta":
                rig.end(response_id, "A line.", attempt=2)
    assert "".join(deltas(seen)) == "A line."


def test_a_snapshot_adds_what_was_missed_and_a_lost_hint_of_the_end_is_no_matter(rig: Rig) -> None:
    response_id = started(rig, "A qu")
    rig.tell(response_id, "1-7", LiveEvent.SNAPSHOT, text="A queue is a ")
    rig.tell(response_id, "1-8", LiveEvent.TEXT, text="row ")
    with rig.client.responses.retrieve(response_id, stream=True) as stream:
        seen = []
        for event in stream:
            seen.append(event)
            if "".join(deltas(seen)) == "A queue is a row" and event.type == "response.output_text.delta":
                rig.worker.succeed(rig.job_of(response_id), "A queue is a row of jobs.", hint=False)
    assert "".join(deltas(seen)) == "A queue is a row of jobs."
    assert seen[-1].type == "response.completed"


def test_streams_end_when_their_response_is_cancelled_or_deleted(rig: Rig) -> None:
    for end, code in (
        (rig.client.responses.cancel, "response_cancelled"),
        (rig.client.responses.delete, "response_deleted"),
    ):
        response_id = started(rig, "A queue ")
        with rig.client.responses.retrieve(response_id, stream=True) as stream:
            events = iter(stream)
            assert next(events).type == "response.created"
            end(response_id)
            last = list(events)[-1]
        assert last.type == "error"
        assert last.code == code


def test_a_stream_of_a_server_that_stops_can_be_gone_on_with(rig: Rig) -> None:
    response_id = started(rig, "A queue ")
    with rig.client.responses.retrieve(response_id, stream=True) as stream:
        seen = []
        for event in stream:
            seen.append(event)
            if len(deltas(seen)) == 2 and event.type == "response.output_text.delta":
                rig.api.stop()
    assert seen[-1].type == "error"
    assert seen[-1].code == "server_stopping"
    assert seen[-1].sequence_number == seen[-2].sequence_number
    assert rig.status(response_id) == "running"
