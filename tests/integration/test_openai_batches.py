"""Batches, driven by the official client against the running server, the control process and sim workers."""

import asyncio
import itertools
import json
import math
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types import Batch
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from sqlalchemy import text

from jobs.broker import Announcer
from jobs.store import sweeps
from producer.openai.batch_lines import OpenAIBatches
from tests import batch_rig
from tests.api import Api
from tests.batch_rig import CHAT, jsonl, line
from tests.processes import Processes
from tests.waiting import until
from workers.batches import Batches

RESPONSES = "/v1/responses"


@pytest.fixture
def client(api: Api) -> Iterator[OpenAI]:
    """The official client, unchanged but for its address."""
    with OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0) as made:
        yield made


@pytest.fixture
def stepping(api: Api) -> Iterator[None]:
    """The control process's part in batches, in this process."""
    with batch_rig.stepping(api):
        yield


def create(client: OpenAI, *lines: Any, **options: Any) -> Batch:
    """A batch of these lines."""
    file = client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
    return client.batches.create(
        **{"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **options}
    )


def reached(client: OpenAI, batch: Batch, *statuses: str) -> Batch:
    """The batch once it has one of these states."""

    def now() -> Batch | None:
        found = client.batches.retrieve(batch.id)
        return found if found.status in statuses else None

    found = until(now, what=f"{statuses}")
    assert found is not None
    return found


async def reached_async(client: AsyncOpenAI, batch_id: str, status: str) -> Batch:
    """The batch once it has this state."""
    while (found := await client.batches.retrieve(batch_id)).status != status:
        await asyncio.sleep(0.02)
    return found


def written(client: OpenAI, file_id: str | None) -> dict[str, dict[str, Any]]:
    """The lines of a file by their `custom_id`."""
    if file_id is None:
        return {}
    lines = [json.loads(one) for one in client.files.content(file_id).text.splitlines()]
    found = {one["custom_id"]: one for one in lines}
    assert len(found) == len(lines)
    return found


def jobs(api: Api, condition: str = "true") -> int:
    """How many jobs meet the condition."""
    with api.engine.begin() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM jobs WHERE {condition}")).scalar_one())


def test_a_batch_runs_to_its_end(api: Api, client: OpenAI, processes: Processes) -> None:
    processes.control()
    processes.worker("cold")
    batch = create(
        client,
        line(0, model=None),
        *(line(n) for n in range(1, 40)),
        "",
        metadata={"run": "nightly"},
        output_expires_after={"anchor": "created_at", "seconds": 7_200},
    )
    assert batch.status in ("validating", "in_progress")
    assert batch.expires_at == batch.created_at + 86_400
    ended = reached(client, batch, "completed")
    assert ended.request_counts is not None
    assert ended.request_counts.model_dump() == {"total": 40, "completed": 40, "failed": 0}
    assert (ended.metadata, ended.model, ended.error_file_id) == (
        {"run": "nightly"},
        "SmolLM2-135M-Instruct",
        None,
    )
    moments = (ended.created_at, ended.in_progress_at, ended.finalizing_at, ended.completed_at)
    assert list(moments) == sorted(moment for moment in moments if moment)
    found = written(client, ended.output_file_id)
    assert list(found) == [f"request-{n}" for n in range(40)]
    first = found["request-0"]
    assert first["error"] is None
    assert first["response"]["status_code"] == 200
    answer = ChatCompletion.model_validate(first["response"]["body"])
    assert answer.choices[0].message.content
    assert answer.service_tier == "flex"
    assert ended.usage is not None
    assert ended.usage.output_tokens == sum(
        one["response"]["body"]["usage"]["completion_tokens"] for one in found.values()
    )
    output = client.files.retrieve(ended.output_file_id or "")
    assert (output.purpose, output.expires_at) == ("batch_output", output.created_at + 7_200)
    assert ended.model_extra is not None
    assert (ended.model_extra["progress"], ended.model_extra["estimated_finish_at"]) == (1.0, None)


def test_a_key_makes_one_batch_and_conflicts_with_another_request(client: OpenAI) -> None:
    file = client.files.create(file=("in.jsonl", jsonl(line(0))), purpose="batch")
    asked: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
    key = {"Idempotency-Key": "k1"}
    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(client.batches.create, **asked, extra_headers=key) for _ in range(8)]
        [batch_id] = {call.result().id for call in calls}
    client.files.delete(file.id)  # a repeat asks for nothing any more
    assert client.batches.create(**asked, extra_headers=key).id == batch_id
    with pytest.raises(openai.ConflictError) as caught:
        client.batches.create(**{**asked, "completion_window": "1h"}, extra_headers=key)
    assert (caught.value.code, caught.value.param) == ("idempotency_conflict", "Idempotency-Key")
    assert batch_id in caught.value.message
    assert [batch.id for batch in client.batches.list()] == [batch_id]


def test_a_key_of_another_tenant_is_another_key(api: Api, client: OpenAI) -> None:
    other = OpenAI(base_url=f"{api.url}/v1", api_key=api.key_of("other"), max_retries=0)
    made = [create(one, line(0), extra_headers={"Idempotency-Key": "k1"}) for one in (client, other)]
    assert made[0].id != made[1].id


BAD = {
    "invalid JSON": ("{", "invalid_json", None, None),
    "no object": ("[]", "invalid_json", None, None),
    "a field twice": ('{"custom_id": "a", "custom_id": "b"}', "duplicate_field", "custom_id", None),
    "no custom_id": ({**line(105), "custom_id": None}, "missing_field", "custom_id", None),
    "a custom_id again": (line(0), "duplicate_custom_id", "custom_id", "request-0"),
    "another url": ({**line(107), "url": "/v1/embeddings"}, "invalid_value", "url", "request-107"),
    "another method": ({**line(108), "method": "GET"}, "invalid_value", "method", "request-108"),
    "an unknown field": ({**line(109), "priority": 1}, "unknown_field", "priority", "request-109"),
    "no body": ({**line(110), "body": "none"}, "wrong_type", "body", "request-110"),
    "another model": (line(111, model="gpt-5"), "mixed_models", "body.model", "request-111"),
    "tools": (line(113, tools=[]), "unsupported_parameter", "body.tools", "request-113"),
    "an unknown parameter": (
        line(114, temprature=1),
        "unsupported_parameter",
        "body.temprature",
        "request-114",
    ),
    "a wrong value": (line(115, temperature=3), "out_of_range", "body.temperature", "request-115"),
    "an image": (
        line(116, messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "unsupported_parameter",
        "body.messages[0].content[0].type",
        "request-116",
    ),
    "a tier": (
        line(117, service_tier="priority"),
        "unsupported_parameter",
        "body.service_tier",
        "request-117",
    ),
    "a stream": (line(118, stream=True), "unsupported_parameter", "body.stream", "request-118"),
    "an over-long prompt": (
        line(119, messages=[{"role": "user", "content": "word " * 40_000}]),
        "prompt_too_long",
        "body.messages",
        "request-119",
    ),
}


@pytest.mark.usefixtures("stepping")
def test_every_bad_line_is_named_and_nothing_runs(api: Api, client: OpenAI) -> None:
    # The first line is right, the second blank.
    batch = create(client, line(0), "", *(bad for bad, *_ in BAD.values()), line(1))
    failed = reached(client, batch, "failed")
    assert failed.failed_at is not None
    assert failed.errors is not None
    assert failed.errors.data is not None
    shown = {error.line: error for error in failed.errors.data}
    for number, (name, (_, code, param, custom_id)) in enumerate(BAD.items(), start=3):
        error = shown.pop(number)
        told = (error.code, error.param, (error.model_extra or {})["custom_id"])
        assert told == (code, param, custom_id), name
    assert shown == {}
    assert (failed.errors.model_extra or {})["total"] == len(BAD)
    assert jobs(api) == 0


def response_line(number: int, **body: Any) -> dict[str, Any]:
    """A right line for a response, its body changed by what is given."""
    asked = {
        "model": "SmolLM2-135M-Instruct",
        "input": f"Name {number} colours.",
        "instructions": "Be brief.",
    }
    return {"custom_id": f"r-{number}", "method": "POST", "url": RESPONSES, "body": {**asked, **body}}


@pytest.mark.usefixtures("stepping")
def test_responses_are_carried_out_as_batches_too(api: Api, client: OpenAI) -> None:
    batch = create(client, response_line(1, metadata={"a": "b"}), response_line(2), endpoint=RESPONSES)
    reached(client, batch, "in_progress")
    worker = api.worker()
    for job_id in _ids(api):
        worker.claim(job_id)
        worker.succeed(job_id, "Blue.")
    found = written(client, reached(client, batch, "completed").output_file_id)
    answer = Response.model_validate(found["r-1"]["response"]["body"])
    assert (answer.output_text, answer.status, answer.instructions) == ("Blue.", "completed", "Be brief.")
    assert (answer.metadata, answer.service_tier) == ({"a": "b"}, "flex")


@pytest.mark.usefixtures("stepping")
def test_bad_lines_of_responses_are_named_by_their_own_fields(api: Api, client: OpenAI) -> None:
    bad = {
        "body.input": response_line(1, input="word " * 40_000),
        "body.max_output_tokens": response_line(2, max_output_tokens=0),
        "body.previous_response_id": response_line(3, previous_response_id="resp_1"),
        "body.tools": response_line(4, tools=[{"type": "web_search"}]),
        "body.stream": response_line(5, stream=True),
        "url": line(6),
    }
    failed = reached(client, create(client, *bad.values(), endpoint=RESPONSES), "failed")
    assert failed.errors is not None
    assert [error.param for error in failed.errors.data or ()] == list(bad)
    assert jobs(api) == 0


@pytest.mark.usefixtures("stepping")
def test_batches_are_shown_wherever_they_stand(client: OpenAI) -> None:
    cancelled, failed, running = create(client, line(0)), create(client, "{"), create(client, line(1))
    client.batches.cancel(cancelled.id)
    reached(client, failed, "failed")
    reached(client, running, "in_progress")
    ended = reached(client, cancelled, "cancelled")
    assert ended.usage is not None
    assert ended.usage.total_tokens == 0
    shown = {batch.id: batch.status for batch in client.batches.list()}
    assert shown == {cancelled.id: "cancelled", failed.id: "failed", running.id: "in_progress"}


@pytest.mark.usefixtures("stepping")
def test_of_many_bad_lines_some_are_shown_and_all_counted(client: OpenAI) -> None:
    failed = reached(client, create(client, *["{"] * 250), "failed")
    assert failed.errors is not None
    assert [error.line for error in failed.errors.data or ()] == list(range(1, 101))
    assert (failed.errors.model_extra or {})["total"] == 250


@pytest.mark.usefixtures("stepping")
def test_files_with_no_line_or_too_many_fail(client: OpenAI) -> None:
    empty, full = create(client, ""), create(client, *["{}"] * 50_002)
    told = {}
    for batch in (empty, full):
        errors = reached(client, batch, "failed").errors
        assert errors is not None
        told[batch.id] = {error.code: error for error in errors.data or ()}
    assert list(told[empty.id]) == ["empty"]
    assert set(told[full.id]) == {"missing_field", "too_many_lines"}
    assert told[full.id]["too_many_lines"].line == 50_001


def test_cancelling_keeps_what_is_done(api: Api, client: OpenAI, processes: Processes) -> None:
    processes.control()
    processes.worker("cold", limit=2, time_scale=1)
    batch = create(client, *(line(n, max_tokens=40) for n in range(60)))
    until(lambda: jobs(api, "status = 'succeeded'") >= 2, what="some answers")
    going = client.batches.retrieve(batch.id)
    assert going.status == "in_progress"
    assert 0 < (going.model_extra or {})["progress"] < 1
    assert (going.model_extra or {})["estimated_finish_at"] >= (going.in_progress_at or 0)
    assert client.batches.cancel(batch.id).status == "cancelling"
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    ended = reached(client, batch, "cancelled")
    done, undone = written(client, ended.output_file_id), written(client, ended.error_file_id)
    assert set(done) | set(undone) == {f"request-{n}" for n in range(60)}
    assert not set(done) & set(undone)
    assert ended.request_counts is not None
    assert ended.request_counts.model_dump() == {"total": 60, "completed": len(done), "failed": len(undone)}
    assert {one["error"]["code"] for one in undone.values()} == {"batch_cancelled"}
    assert all(one["response"] is None for one in undone.values())
    assert jobs(api, "status IN ('queued', 'running')") == 0
    with pytest.raises(openai.ConflictError):
        create_and_end_then_cancel(client)


def create_and_end_then_cancel(client: OpenAI) -> None:
    """Cancel a batch that has failed."""
    client.batches.cancel(reached(client, create(client, "{"), "failed").id)


@pytest.mark.usefixtures("stepping")
def test_what_is_not_done_in_time_expires(api: Api, client: OpenAI) -> None:
    batch = create(client, *(line(n) for n in range(5)), completion_window="1h")
    assert batch.expires_at == batch.created_at + 3_600
    reached(client, batch, "in_progress")
    worker, ids = api.worker(), _ids(api)
    for job_id, finish in zip(ids[:2], (worker.succeed, _fails(worker)), strict=True):
        worker.claim(job_id)
        finish(job_id, "Four.")
    counts = client.batches.retrieve(batch.id).request_counts
    assert counts is not None
    assert counts.model_dump() == {"total": 5, "completed": 1, "failed": 1}
    with api.engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET deadline = now() WHERE status = 'queued'"))
    with api.engine.begin() as connection:
        assert len(sweeps.expire(connection)) == 3
    ended = reached(client, batch, "expired")
    assert ended.expired_at is not None
    done, undone = written(client, ended.output_file_id), written(client, ended.error_file_id)
    assert list(done) == ["request-0"]
    failed = undone.pop("request-1")
    assert failed["error"] is None
    assert failed["response"]["status_code"] == 500
    assert failed["response"]["body"]["error"]["code"] == "engine_error"
    assert {one["error"]["code"] for one in undone.values()} == {"batch_expired"}
    assert list(undone) == ["request-2", "request-3", "request-4"]


def _ids(api: Api) -> list[str]:
    """The jobs in the order of their lines."""
    with api.engine.begin() as connection:
        return [
            str(row.job_id) for row in connection.execute(text("SELECT * FROM batch_items ORDER BY line"))
        ]


def _fails(worker: Any) -> Callable[[str, str], None]:
    return lambda job_id, output: worker.fail(job_id)


def test_a_killed_control_process_is_followed_by_the_next(
    api: Api, client: OpenAI, processes: Processes
) -> None:
    processes.worker("cold")
    killed = processes.control()
    batch = create(client, *(line(n) for n in range(300)))
    reached(client, batch, "in_progress", "finalizing")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    processes.control()
    ended = reached(client, batch, "completed")
    assert list(written(client, ended.output_file_id)) == [f"request-{n}" for n in range(300)]
    assert jobs(api) == 300


def test_what_is_given_up_in_the_middle_leaves_no_half_and_no_second(api: Api, client: OpenAI) -> None:
    batch = create(client, *(line(n) for n in range(1_200)))
    announcer, batch_format = Announcer(api.settings), OpenAIBatches(api.settings)

    def step(until_call: float) -> None:
        """One step, given up when it asks for the given time whether it is to stop."""
        calls = itertools.count(1)
        Batches(api.engine, announcer, batch_format, lambda: next(calls) >= until_call).step()

    step(2)  # with 500 lines stored and 500 more
    assert (client.batches.retrieve(batch.id).status, jobs(api)) == ("validating", 0)
    step(math.inf)
    assert (client.batches.retrieve(batch.id).status, jobs(api)) == ("in_progress", 1_200)
    with api.engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET status = 'failed', error_code = 'engine_error'"))
    step(3)  # with two pages of lines written and a third read
    assert client.batches.retrieve(batch.id).status == "finalizing"
    assert len(list(client.files.list())) == 1
    step(math.inf)
    step(math.inf)
    ended = client.batches.retrieve(batch.id)
    assert (ended.status, ended.output_file_id) == ("completed", None)
    assert list(written(client, ended.error_file_id)) == [f"request-{n}" for n in range(1_200)]
    assert len(list(client.files.list())) == 2
    announcer.close()


def test_lists_go_on_behind_a_cursor_and_show_only_the_tenants_own(api: Api, client: OpenAI) -> None:
    made = [create(client, line(n)).id for n in range(5)]
    assert [batch.id for batch in client.batches.list(limit=2)] == made[::-1]
    page = client.batches.list(limit=2, after=made[3])
    assert ([batch.id for batch in page.data], page.has_more) == ([made[2], made[1]], True)
    with OpenAI(base_url=f"{api.url}/v1", api_key=api.key_of("umbrella"), max_retries=0) as other:
        assert list(other.batches.list()) == []
        for call in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                call(made[0])
        file = client.files.list(limit=1).data[0]
        with pytest.raises(openai.NotFoundError) as refused:
            other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    assert refused.value.body["param"] == "input_file_id"  # type: ignore[index]  # the client's type is object


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint", "/v1/embeddings"),
        ("completion_window", "2h"),
        ("output_expires_after", {"anchor": "created_at", "seconds": 1}),
        ("metadata", {"a": 1}),
        ("priority", 1),
    ],
)
def test_a_wrong_request_for_a_batch_is_refused_by_field(client: OpenAI, field: str, value: Any) -> None:
    file = client.files.create(file=("in.jsonl", jsonl(line(0))), purpose="batch")
    asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", field: value}
    with pytest.raises(openai.APIStatusError) as refused:
        client.post("/batches", body=asked, cast_to=Batch)
    assert refused.value.body["param"].startswith(field)  # type: ignore[index]  # the client's type is object


@pytest.mark.usefixtures("stepping")
def test_the_asynchronous_client_does_the_same(api: Api) -> None:
    async def run() -> Batch:
        async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=api.key) as client:
            file = await client.files.create(file=("in.jsonl", jsonl(line(0))), purpose="batch")
            batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            await reached_async(client, batch.id, "in_progress")
            [job_id] = _ids(api)
            api.worker().claim(job_id)
            api.worker().succeed(job_id, "Zero.")
            batch = await reached_async(client, batch.id, "completed")
            assert [one.id async for one in client.batches.list()] == [batch.id]
            assert (await client.files.content(batch.output_file_id or "")).text.count("\n") == 1
            return batch

    assert asyncio.run(asyncio.wait_for(run(), 20)).error_file_id is None
