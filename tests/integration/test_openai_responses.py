"""Responses by the official client: created, waited for, cancelled, left, deleted; how they end."""

import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from openai import OpenAI
from openai.types.responses import Response

from jobs.domain.jobs import Move
from jobs.domain.outcomes import Choice, FinishReason, TokenLogprob
from tests.api import Api
from tests.processes import Processes
from tests.responses_rig import MODEL, SLOW, Rig, refused
from tests.waiting import until


@pytest.fixture
def rig(api: Api) -> Rig:
    return Rig(api)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_a_background_response_is_queued_then_in_progress_then_completed(rig: Rig) -> None:
    created = rig.create(metadata={"ticket": "4711"}, temperature=0.5, max_output_tokens=50, user="u1")
    assert (created.status, created.object, created.output) == ("queued", "response", [])
    assert (created.background, created.to_dict()["store"], created.usage, created.error) == (
        True,
        True,
        None,
        None,
    )
    rig.worker.claim(rig.job_of(created.id))
    assert rig.client.responses.retrieve(created.id).status == "in_progress"
    rig.end(created.id, "A line.")
    done = rig.client.responses.retrieve(created.id)
    assert (done.status, done.output_text, done.completed_at is not None) == ("completed", "A line.", True)
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens, done.usage.total_tokens) == (12, 4, 16)
    assert done.usage.input_tokens_details.cached_tokens == 8
    assert (done.metadata, done.temperature, done.max_output_tokens) == ({"ticket": "4711"}, 0.5, 50)
    assert (done.user, done.model, done.service_tier, done.tools) == ("u1", MODEL, "default", [])
    assert Response.model_validate(done.to_dict(), strict=True) == done


def test_a_foreground_response_is_waited_for(rig: Rig, threads: ThreadPoolExecutor) -> None:
    asked: Future[Response] = threads.submit(rig.create, background=False)
    rig.answer(rig.newest(), "A line.")
    assert asked.result().output_text == "A line."


def test_an_answer_that_was_cut_is_incomplete(rig: Rig) -> None:
    for reason, incomplete in (
        (FinishReason.LENGTH, "max_output_tokens"),
        (FinishReason.CONTENT_FILTER, "content_filter"),
        (FinishReason.REPETITION, "content_filter"),
    ):
        created = rig.create()
        rig.answer(created.id, "A li", reason=reason)
        found = rig.client.responses.retrieve(created.id)
        assert (found.status, found.output_text) == ("incomplete", "A li")
        assert found.incomplete_details is not None
        assert found.incomplete_details.to_dict() == {"reason": incomplete, "finish_reason": reason}
        assert list(rig.client.responses.retrieve(created.id, stream=True))[-1].type == "response.incomplete"


def test_a_failure_is_told_by_its_error(rig: Rig) -> None:
    for move, code, shown in (
        (Move.FAIL, "engine_error", "server_error"),
        (Move.FAIL, "prompt_too_long", "invalid_prompt"),
        (Move.EXPIRE, "deadline_exceeded", "server_error"),
    ):
        created = rig.create()
        rig.worker.claim(rig.job_of(created.id))
        rig.move(created.id, move, error_code=code, error_message="it broke")
        found = rig.client.responses.retrieve(created.id)
        assert found.status == "failed"
        assert found.error is not None
        assert (found.error.code, found.error.type, found.error.message) == (shown, code, "it broke")
        assert list(rig.client.responses.retrieve(created.id, stream=True))[-1].type == "response.failed"


def test_log_probabilities_come_with_the_answer(rig: Rig) -> None:
    created = rig.create(top_logprobs=1, include=["message.output_text.logprobs"])
    assert (
        rig.column(created.id, "request")["sampling"] | {"logprobs": True, "top_logprobs": 1}
        == rig.column(created.id, "request")["sampling"]
    )
    logprobs = (TokenLogprob("é", -0.5, (("e", -1.5),)),)
    rig.answer(created.id, "é", choices=(Choice("é", FinishReason.STOP, logprobs),))
    [message] = rig.client.responses.retrieve(created.id).output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text" and part.logprobs is not None
    assert part.logprobs[0].to_dict() == {
        "token": "é", "logprob": -0.5, "bytes": [195, 169],
        "top_logprobs": [{"token": "e", "logprob": -1.5, "bytes": [101]}],
    }  # fmt: skip


def test_a_cancel_frees_the_place_in_the_engine(rig: Rig, processes: Processes) -> None:
    processes.worker("warm", limit=1, time_scale=SLOW)
    running = rig.create(max_output_tokens=1_000)
    until(lambda: rig.client.responses.retrieve(running.id).status == "in_progress", what="the start")
    waiting = rig.create(max_output_tokens=2)
    cancelled = rig.client.responses.cancel(running.id)
    assert (cancelled.status, cancelled.output) == ("cancelled", [])
    until(lambda: rig.client.responses.retrieve(waiting.id).status == "incomplete", what="the next one")
    assert rig.client.responses.cancel(running.id).status == "cancelled"
    assert rig.client.responses.cancel(waiting.id).status == "incomplete"


def test_a_client_that_leaves_cancels_what_it_waited_for_but_nothing_in_the_background(rig: Rig) -> None:
    rig.leave()
    for background in (False, True):
        with rig.stream(background=background) as events:
            next(iter(events))
    waited, streamed, background_one = rig.ids()
    for response_id in (waited, streamed):
        until(lambda own=response_id: rig.status(own) == "cancelled", what="the cancel")  # type: ignore[misc]
    assert rig.status(background_one) == "queued"


def test_a_key_lets_a_client_come_back_to_its_answer(rig: Rig, threads: ThreadPoolExecutor) -> None:
    header = {"Idempotency-Key": "k1"}
    rig.leave(extra_headers=header)
    asked: Future[Response] = threads.submit(rig.create, background=False, extra_headers=header)
    rig.answer(rig.newest(), "A line.")
    assert asked.result().output_text == "A line."
    assert rig.ids() == [asked.result().id]
    assert rig.create(background=False, extra_headers=header).output_text == "A line."
    assert refused(rig.create, extra_headers=header).code == "idempotency_conflict"


def test_a_deleted_response_is_gone_but_for_its_figures(rig: Rig) -> None:
    for state in ("queued", "running", "completed"):
        created = rig.create(metadata={"ticket": "4711"})
        if state != "queued":
            rig.worker.claim(rig.job_of(created.id))
        if state == "completed":
            rig.end(created.id, "A line.")
        rig.client.responses.delete(created.id)
        for call in (rig.client.responses.retrieve, rig.client.responses.cancel, rig.client.responses.delete):
            assert refused(call, created.id).status_code == 404
        assert refused(rig.create, previous_response_id=created.id).code == "previous_response_not_found"
        job = rig.api.client.get(f"/v1/jobs/{rig.job_of(created.id)}").json()
        assert job["status"] == ("succeeded" if state == "completed" else "cancelled")
        assert (job["result"], job["metadata"]) == (None, None)
        assert [attempt["total_ms"] for attempt in job["latency"]] == [12.5] * (state == "completed")
        assert rig.column(created.id, "request") == {}
        assert rig.api.client.get(f"/v1/jobs/{rig.job_of(created.id)}/events").status_code == 404
    assert rig.texts_left() == 0


def test_a_failed_response_that_was_deleted_is_not_tried_again(rig: Rig) -> None:
    created = rig.create()
    rig.worker.claim(rig.job_of(created.id))
    rig.move(created.id, Move.FAIL, error_code="engine_error", error_message="it broke")
    rig.client.responses.delete(created.id)
    again = rig.api.post(f"/v1/jobs/{rig.job_of(created.id)}/redrive")
    assert (again.status_code, again.json()["error"]["code"]) == (409, "job_not_failed")


def test_a_worker_survives_that_its_job_is_deleted(rig: Rig, processes: Processes) -> None:
    processes.worker("warm", limit=1, time_scale=SLOW)
    running = rig.create(max_output_tokens=1_000)
    until(lambda: rig.client.responses.retrieve(running.id).status == "in_progress", what="the start")
    rig.client.responses.delete(running.id)
    assert rig.create(background=False, max_output_tokens=2).status == "incomplete"
    assert "record.refused" not in processes.logs()


def test_what_is_not_stored_is_gone_once_it_is_answered(rig: Rig, threads: ThreadPoolExecutor) -> None:
    asked: Future[Response] = threads.submit(rig.create, background=False, store=False)
    response_id = rig.newest()
    assert refused(rig.client.responses.retrieve, response_id).status_code == 404
    rig.answer(response_id, "A line.")
    assert (asked.result().output_text, asked.result().to_dict()["store"]) == ("A line.", False)
    until(lambda: rig.texts_left() == 0, what="the deletion")
    latency = rig.api.client.get(f"/v1/jobs/{rig.job_of(response_id)}").json()["latency"]
    assert [attempt["total_ms"] for attempt in latency] == [12.5]
    with rig.stream(background=False, store=False) as stream:
        next(iter(stream))
    until(lambda: rig.texts_left() == 0, what="the deletion of what its client left")


def test_who_waits_by_a_key_for_what_is_deleted_is_told(rig: Rig, threads: ThreadPoolExecutor) -> None:
    given = {"background": False, "extra_headers": {"Idempotency-Key": "k1"}}
    asked = threads.submit(refused, rig.create, **given)
    response_id = rig.newest()
    until(lambda: rig.worker.listeners(rig.job_of(response_id)), what="the wait")
    rig.client.responses.delete(response_id)
    assert asked.result().code == "response_not_found"
    asked_again: Future[Response] = threads.submit(rig.create, **given)
    until(lambda: rig.newest() != response_id, what="a new one by the same key")
    rig.answer(rig.newest(), "A line.")
    assert asked_again.result().output_text == "A line."


def test_tenants_do_not_see_each_others_responses(rig: Rig) -> None:
    created = rig.create()
    other = OpenAI(base_url=f"{rig.api.url}/v1", api_key=rig.api.key_of("other"), max_retries=0)
    for call in (other.responses.retrieve, other.responses.cancel, other.responses.delete):
        assert refused(call, created.id).code == "response_not_found"
    error = refused(other.responses.create, model=MODEL, input="?", previous_response_id=created.id)
    assert (error.status_code, error.code) == (400, "previous_response_not_found")
    assert rig.status(created.id) == "queued"


def test_jobs_of_other_routes_are_no_responses(rig: Rig) -> None:
    job_id = uuid.UUID(rig.api.accept())
    for call in (rig.client.responses.retrieve, rig.client.responses.cancel, rig.client.responses.delete):
        assert refused(call, f"resp_{job_id.hex}").status_code == 404
    assert rig.api.rows() == 1
