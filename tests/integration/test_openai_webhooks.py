"""Webhook endpoints, driven by the official client against the running server, a sender and receivers."""

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, InvalidWebhookSignatureError, OpenAI
from openai.types.webhooks import WebhookEndpoint, WebhookEndpointWithSecret
from sqlalchemy import Engine, event, text
from structlog.testing import capture_logs

from jobs.domain.events import EndpointEvent
from jobs.domain.jobs import Move
from jobs.domain.outcomes import FinishReason
from jobs.settings import Settings
from jobs.store import endpoint_deliveries, sweeps
from producer.openai.webhook_endpoints import MOST_ENDPOINTS
from tests import batch_rig, responses_rig
from tests.api import Api
from tests.batch_rig import CHAT, jsonl, line
from tests.conftest import JobMaker
from tests.responses_rig import refused
from tests.waiting import until
from tests.webhook_rig import Receiver, Request, Rig, answer, answer_late

ALL: Any = list(EndpointEvent)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """The API may send to receivers on loopback."""
    allowed = settings.webhooks.model_copy(update={"allow": ("127.0.0.0/8",)})
    return settings.model_copy(update={"webhooks": allowed})


@pytest.fixture
def rig(engine: Engine, settings: Settings, new_job: JobMaker) -> Iterator[Rig]:
    """Receivers and senders."""
    with closing(Rig(engine, settings, new_job)) as made:
        yield made


@pytest.fixture
def client(api: Api) -> Iterator[OpenAI]:
    """The official client, unchanged but for its address."""
    with OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0) as made:
        yield made


@pytest.fixture
def answering(api: Api) -> responses_rig.Rig:
    """Makes responses, and ends them by hand."""
    return responses_rig.Rig(api)


def endpoint(client: OpenAI, receiver: Receiver, *events: str) -> WebhookEndpointWithSecret:
    """An endpoint at the receiver, for all events unless some are named."""
    return client.webhooks.create(name="hook", url=receiver.url, event_types=list(events) or ALL)  # type: ignore[arg-type]  # any of the literals


def unwrapped(client: OpenAI, request: Request, secret: str) -> Any:
    """The typed event that a request tells, by the package's own check."""
    return client.webhooks.unwrap(request.body, request.headers, secret=secret)


def verifies(client: OpenAI, request: Request, secret: str) -> bool:
    """Whether the request is signed with the secret."""
    try:
        client.webhooks.verify_signature(request.body, request.headers, secret=secret)
    except InvalidWebhookSignatureError:
        return False
    return True


def deliveries(api: Api, endpoint_id: str, **query: Any) -> Any:
    """What our own route tells of an endpoint's deliveries."""
    found = api.client.get(f"/v1/webhook_endpoints/{endpoint_id}/deliveries", params=query)
    assert found.status_code == 200, found.text
    return found.json()


def settled(api: Api, endpoint_id: str, count: int) -> list[dict[str, Any]]:
    """An endpoint's deliveries, newest first, once there are so many and none is under way."""

    def now() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = deliveries(api, endpoint_id)["data"]
        ended = len(found) == count and all(one["status"] != "pending" for one in found)
        return found if ended else []

    return until(now, what=f"{count} deliveries that have ended")


def test_endpoints_are_kept_as_the_client_asks(api: Api, client: OpenAI) -> None:
    assert client.webhooks.event_types.list().data == ALL
    made = [
        client.webhooks.create(
            name=f"hook {n}",
            url=f"https://example.com/{n}",
            event_types=["batch.completed", "response.failed", "batch.completed"],
        )
        for n in range(3)
    ]
    first = made[0]
    assert (first.object, first.name, first.url) == ("webhook_endpoint", "hook 0", "https://example.com/0")
    assert first.event_types == ["batch.completed", "response.failed"]
    assert first.signing_secret.startswith("whsec_")
    assert len({one.signing_secret for one in made}) == 3
    page = client.webhooks.list(limit=2)
    assert page.has_next_page()
    listed = list(page)
    assert [one.id for one in listed] == [one.id for one in reversed(made)]
    found = client.webhooks.retrieve(first.id)
    assert found == listed[-1]
    assert found.signing_secret_hint == f"whsec_...{first.signing_secret.rstrip('=')[-4:]}"
    same = client.webhooks.update(first.id, name="hook 0")
    assert same.updated_at == found.updated_at
    changed = client.webhooks.update(first.id, name="renamed", event_types=["batch.expired"])
    assert (changed.name, changed.url, changed.event_types) == ("renamed", first.url, ["batch.expired"])
    deleted = client.webhooks.delete(first.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (first.id, "webhook_endpoint.deleted", True)
    assert refused(client.webhooks.retrieve, first.id).status_code == 404
    assert len(client.webhooks.list().data) == 2


def test_the_async_client_is_served_too(api: Api, rig: Rig) -> None:
    receiver = rig.receive()
    rig.send()

    async def use() -> None:
        async with AsyncOpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0) as client:
            assert (await client.webhooks.event_types.list()).data == ALL
            made = await client.webhooks.create(name="hook", url=receiver.url, event_types=ALL)
            assert (await client.webhooks.update(made.id, name="renamed")).name == "renamed"
            assert [one.id async for one in client.webhooks.list()] == [made.id]
            rotated = await client.webhooks.rotate_secret(made.id)
            assert rotated.signing_secret != made.signing_secret
            tested = await client.webhooks.test(made.id, event_type="response.completed")
            assert tested.status_code == 204
            [request] = receiver.requests
            told = client.webhooks.unwrap(request.body, request.headers, secret=rotated.signing_secret)
            assert told.type == "response.completed"
            assert (await client.webhooks.delete(made.id)).deleted
            with pytest.raises(openai.NotFoundError):
                await client.webhooks.retrieve(made.id)

    asyncio.run(use())


def test_secrets_are_shown_once_and_kept_encrypted(api: Api, client: OpenAI) -> None:
    made = client.webhooks.create(name="hook", url="https://example.com", event_types=ALL)
    rotated = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True)
    shown = json.dumps(
        [client.webhooks.retrieve(made.id).to_dict(), client.webhooks.list().to_dict()], default=str
    )
    with api.engine.begin() as connection:
        stored = str(connection.execute(text("SELECT * FROM webhook_endpoints")).one())
    for secret in (made.signing_secret, rotated.signing_secret):
        assert secret.removeprefix("whsec_") not in shown + stored


def test_endpoints_are_their_tenants_own(api: Api, client: OpenAI) -> None:
    made = client.webhooks.create(name="hook", url="https://example.com", event_types=ALL)
    with OpenAI(base_url=f"{api.url}/v1", api_key=api.key_of("other"), max_retries=0) as other:
        assert other.webhooks.list().data == []
        for call in (
            other.webhooks.retrieve,
            other.webhooks.update,
            other.webhooks.rotate_secret,
            other.webhooks.delete,
        ):
            assert refused(call, made.id).code == "webhook_endpoint_not_found"
        assert refused(other.webhooks.test, made.id, event_type="batch.failed").status_code == 404
        path = f"/v1/webhook_endpoints/{made.id}"
        headers = {"Authorization": f"Bearer {other.api_key}"}
        for found in (
            api.client.get(f"{path}/deliveries", headers=headers),
            api.client.post(f"{path}/redeliver", json={"since": 0}, headers=headers),
            api.client.post(f"{path}/deliveries/{uuid.uuid4()}/redeliver", headers=headers),
        ):
            assert (found.status_code, found.json()["error"]["code"]) == (404, "webhook_endpoint_not_found")
    assert client.webhooks.retrieve(made.id).name == "hook"


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"url": "http://example.com"}, "url", "webhook_target_refused"),
        ({"url": "https://10.1.2.3/hook"}, "url", "webhook_target_refused"),
        ({"event_types": ["video.completed"]}, "event_types[0]", "invalid_value"),
        ({"event_types": []}, "event_types", "empty"),
        ({"name": ""}, "name", "empty"),
        ({"name": None}, "name", "wrong_type"),
        ({"extra_body": {"secret": "mine"}}, "secret", "unknown_field"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    api: Api, client: OpenAI, change: dict[str, Any], param: str, code: str
) -> None:
    asked = {"name": "hook", "url": "https://example.com", "event_types": ["batch.failed"], **change}
    error = refused(client.webhooks.create, **asked)
    assert (error.param, error.code) == (param, code)
    assert client.webhooks.list().data == []


def test_a_tenant_has_so_many_endpoints_at_most(api: Api, client: OpenAI) -> None:
    with api.engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO webhook_endpoints (id, tenant_id, name, url, event_types, secret) SELECT"
                " gen_random_uuid(), (SELECT id FROM tenants WHERE name = 'acme'), 'hook',"
                " 'https://example.com', ARRAY['batch.failed'], 'sealed' FROM generate_series(1, :n)"
            ),
            {"n": MOST_ENDPOINTS},
        )
    error = refused(
        client.webhooks.create, name="one more", url="https://example.com", event_types=["batch.failed"]
    )
    assert error.code == "out_of_range"


def test_a_test_tells_what_the_endpoint_answers(api: Api, client: OpenAI, rig: Rig) -> None:
    receiver = rig.receive(answer(204), answer(500), answer(410))
    made = endpoint(client, receiver, "batch.failed")
    rig.send()
    for number, status in enumerate((204, 500, 410), start=1):
        result = client.webhooks.test(made.id, event_type="response.completed")
        assert (result.object, result.webhook_endpoint_id) == ("webhook_endpoint.test", made.id)
        assert (result.event_type, result.status_code, result.success) == ("response.completed", status, True)
        assert len(receiver.requests) == number
        told = unwrapped(client, receiver.requests[-1], made.signing_secret)
        assert told.type == "response.completed"
        assert told.data.id.startswith("resp_")
    # Not tried again, and no ground for disabling anything.
    assert [one["attempts"] for one in settled(api, made.id, 3)] == [1, 1, 1]
    found = client.webhooks.retrieve(made.id).to_dict()
    assert (found["status"], found["failing_since"]) == ("enabled", None)


def test_a_test_that_reaches_nobody_is_an_error(api: Api, client: OpenAI, rig: Rig) -> None:
    receiver = rig.receive()
    made = endpoint(client, receiver)
    receiver.close()
    rig.send()
    error = refused(client.webhooks.test, made.id, event_type="batch.expired")
    assert (error.status_code, error.code) == (400, "webhook_test_failed")
    assert "cannot connect" in error.message


def test_background_responses_are_told_of(
    api: Api, client: OpenAI, rig: Rig, answering: responses_rig.Rig
) -> None:
    receiver, few = rig.receive(), rig.receive()
    made, second = endpoint(client, receiver), endpoint(client, few, "response.failed")
    expected = {}
    for reason, told in (
        (FinishReason.STOP, "response.completed"),
        (FinishReason.LENGTH, "response.incomplete"),
        (FinishReason.CONTENT_FILTER, "response.incomplete"),
        (FinishReason.REPETITION, "response.incomplete"),
    ):
        expected[answering.create().id] = told
        answering.answer(list(expected)[-1], "An answer.", reason=reason)
    failed, cancelled, expired = (answering.create().id for _ in range(3))
    answering.worker.claim(answering.job_of(failed))
    answering.move(failed, Move.FAIL, error_code="engine_error", error_message="it broke")
    client.responses.cancel(cancelled)
    rig.execute(f"UPDATE jobs SET deadline = now() WHERE id = '{answering.job_of(expired)}'")
    with api.engine.begin() as connection:
        sweeps.expire(connection)
    expected |= {
        failed: "response.failed",
        cancelled: "response.cancelled",
        expired: "response.failed",
    }
    # One that is waited for is not told of, nor is a job of another surface.
    waited_for = answering.create().id
    rig.execute(f"UPDATE responses SET background = false WHERE job_id = '{answering.job_of(waited_for)}'")
    answering.answer(waited_for, "An answer.")
    api.worker().claim(job := api.accept())
    api.worker().succeed(job, "An answer.")
    rig.send()
    events = [unwrapped(client, request, made.signing_secret) for request in receiver.wait(len(expected))]
    settled(api, made.id, len(expected))
    assert {one.data.id: one.type for one in events} == expected
    assert all(type(one).__name__.startswith("Response") for one in events)
    assert len({one.id for one in events}) == len(expected)
    failures = [unwrapped(client, request, second.signing_secret) for request in few.wait(2)]
    assert [one.type for one in failures] == ["response.failed"] * 2
    listed = deliveries(api, made.id)["data"]
    assert {one["data_id"]: one["event"] for one in listed} == expected
    assert {one["id"] for one in listed} == {request.id for request in receiver.requests}


def test_batches_are_told_of(api: Api, client: OpenAI, rig: Rig) -> None:
    receiver = rig.receive()
    made = endpoint(client, receiver)
    rig.send()

    def create(*lines: Any) -> str:
        file = client.files.create(file=("in.jsonl", jsonl(*lines)), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        return batch.id

    def job_of(batch: str) -> str:
        def found() -> str:
            with api.engine.begin() as connection:
                statement = text("SELECT job_id FROM batch_items WHERE batch_id = :id")
                batch_id = uuid.UUID(hex=batch.removeprefix("batch_"))
                return str(connection.execute(statement, {"id": batch_id}).scalar_one_or_none() or "")

        return until(found, what="the job of a batch")

    with batch_rig.stepping(api):
        failed = create("no line")
        completed, cancelled, expired = create(line(1)), create(line(2)), create(line(3))
        api.worker().claim(job_of(completed))
        api.worker().succeed(job_of(completed), "An answer.")
        job_of(cancelled)
        client.batches.cancel(cancelled)
        rig.execute(f"UPDATE jobs SET deadline = now() WHERE id = '{job_of(expired)}'")
        with api.engine.begin() as connection:
            sweeps.expire(connection)
        told = [unwrapped(client, request, made.signing_secret) for request in receiver.wait(4)]
    assert {one.data.id: one.type for one in told} == {
        failed: "batch.failed",
        completed: "batch.completed",
        cancelled: "batch.cancelled",
        expired: "batch.expired",
    }
    assert all(type(one).__name__.startswith("Batch") for one in told)
    assert {one["data_id"] for one in settled(api, made.id, 4)} == {failed, completed, cancelled, expired}


def test_both_secrets_verify_for_a_day_after_a_rotation(api: Api, client: OpenAI, rig: Rig) -> None:
    receiver = rig.receive()
    made = endpoint(client, receiver)
    rig.send()

    def signed_with(*secrets: str) -> list[bool]:
        client.webhooks.test(made.id, event_type="batch.completed")
        return [verifies(client, receiver.requests[-1], secret) for secret in secrets]

    first = made.signing_secret
    second = client.webhooks.rotate_secret(made.id, keep_old_secret_active_for_24_hours=True).signing_secret
    assert signed_with(first, second) == [True, True]
    rig.execute("UPDATE webhook_endpoints SET old_secret_until = old_secret_until - interval '23.9 hours'")
    assert signed_with(first, second) == [True, True]
    rig.execute("UPDATE webhook_endpoints SET old_secret_until = old_secret_until - interval '0.2 hours'")
    assert signed_with(first, second) == [False, True]
    third = client.webhooks.rotate_secret(made.id).signing_secret
    assert signed_with(first, second, third) == [False, False, True]


def test_what_was_missed_is_sent_again(
    api: Api, client: OpenAI, rig: Rig, answering: responses_rig.Rig
) -> None:
    receiver = rig.receive(answer(204), answer(500), answer(204))
    made = endpoint(client, receiver)
    sender = rig.send(retry_scale=1.0)
    told = []
    for count in (1, 2):
        told.append(answering.create().id)
        answering.answer(told[-1], "An answer.")
        sender.wake()
        receiver.wait(count)
    until(lambda: deliveries(api, made.id)["data"][0]["attempt_log"])
    rig.execute("UPDATE webhook_deliveries SET status = 'failed' WHERE status = 'pending'")
    failed, delivered = settled(api, made.id, 2)
    assert [(one["data_id"], one["status"]) for one in (failed, delivered)] == [
        (told[1], "failed"),
        (told[0], "delivered"),
    ]
    assert [one["status_code"] for one in failed["attempt_log"]] == [500]
    assert deliveries(api, made.id, status="failed")["data"] == [failed]
    page = deliveries(api, made.id, limit=1)
    assert (page["data"], page["has_more"]) == ([failed], True)
    assert deliveries(api, made.id, limit=1, after=page["last_id"])["data"] == [delivered]
    path = f"/v1/webhook_endpoints/{made.id}"

    def again(**since: Any) -> list[str]:
        """The ids of what is sent again since then."""
        before = len(receiver.requests)
        found = api.post(f"{path}/redeliver", **since)
        assert found.status_code == 202, found.text
        sender.wake()
        settled(api, made.id, 2)
        ids = receiver.ids[before:]
        assert found.json()["deliveries"] == len(ids)
        return sorted(ids)

    assert again(since=made.created_at, status="failed") == [failed["id"]]
    assert again(since=0, status="failed") == []
    assert again(since=made.created_at) == [delivered["id"], failed["id"]]
    assert again(since=made.created_at + 3_600) == []
    one = api.post(f"{path}/deliveries/{failed['id']}/redeliver")
    assert (one.status_code, one.json()["status"]) == (202, "pending")
    sender.wake()
    assert [one["attempts"] for one in settled(api, made.id, 2)] == [4, 2]
    assert receiver.ids[-1] == failed["id"]
    assert api.post(f"{path}/deliveries/{uuid.uuid4()}/redeliver").status_code == 404


def test_what_waits_goes_to_the_new_address(
    api: Api, client: OpenAI, rig: Rig, answering: responses_rig.Rig
) -> None:
    old, new = rig.receive(answer(500)), rig.receive()
    made = endpoint(client, old)
    answering.answer(answering.create().id, "An answer.")
    sender = rig.send(retry_scale=1.0)
    until(lambda: deliveries(api, made.id)["data"][0]["attempt_log"])
    client.webhooks.update(made.id, url=new.url)
    rig.execute("UPDATE webhook_deliveries SET next_attempt_at = now()")
    sender.wake()
    [delivered] = settled(api, made.id, 1)
    assert (delivered["status"], delivered["url"]) == ("delivered", new.url)
    assert new.ids == old.ids


def test_days_of_failure_disable_an_endpoint_until_it_is_updated(
    api: Api, client: OpenAI, rig: Rig, answering: responses_rig.Rig
) -> None:
    receiver = rig.receive(answer(500))
    made = endpoint(client, receiver)
    sender = rig.send(retry_scale=1.0)

    def state() -> dict[str, Any]:
        found: dict[str, Any] = client.webhooks.retrieve(made.id).to_dict()
        return found

    answering.answer(answering.create().id, "An answer.")
    until(lambda: state()["failing_since"])
    assert state()["status"] == "enabled"
    rig.execute("UPDATE webhook_endpoints SET failing_since = failing_since - interval '5 days'")
    with capture_logs() as logs:
        rig.execute("UPDATE webhook_deliveries SET next_attempt_at = now()")
        sender.wake()
        until(lambda: state()["status"] == "disabled")
        until(lambda: [entry for entry in logs if entry["event"] == "endpoint.disabled"])
    assert state()["disabled_reason"] == "nothing was delivered for 5 days"
    # Neither what waited is sent, nor is anything new written, nor sent again.
    rig.execute("UPDATE webhook_deliveries SET next_attempt_at = now()")
    sender.wake()
    [missed] = settled(api, made.id, 1)
    assert (missed["status"], len(receiver.requests)) == ("failed", 2)
    assert "disabled" in missed["attempt_log"][-1]["error"]
    answering.answer(answering.create().id, "An answer.")
    assert len(deliveries(api, made.id)["data"]) == 1
    again = f"/v1/webhook_endpoints/{made.id}/deliveries/{missed['id']}/redeliver"
    refusal = api.post(again)
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (409, "webhook_endpoint_disabled")
    assert "\ntrilane_webhook_endpoints_disabled 1.0\n" in api.client.get("/metrics").text
    receiver.script = answer(204)
    assert client.webhooks.test(made.id, event_type="batch.failed").status_code == 204
    assert state()["status"] == "disabled"
    enabled = client.webhooks.update(made.id).to_dict()
    assert (enabled["status"], enabled["disabled_at"], enabled["failing_since"]) == ("enabled", None, None)
    assert api.post(again).status_code == 202
    until(lambda: deliveries(api, made.id, status="delivered")["data"][-1:])


def test_a_success_ends_the_days_of_failure(client: OpenAI, rig: Rig, answering: responses_rig.Rig) -> None:
    made = endpoint(client, rig.receive(answer(500), answer(204)))
    answering.answer(answering.create().id, "An answer.")
    sender = rig.send(retry_scale=1.0)

    def failing() -> Any:
        return client.webhooks.retrieve(made.id).to_dict()["failing_since"]

    until(failing)
    rig.execute("UPDATE webhook_deliveries SET next_attempt_at = now()")
    sender.wake()
    until(lambda: failing() is None)


def test_a_receiver_that_is_gone_disables_its_endpoint_alone(
    api: Api, client: OpenAI, rig: Rig, answering: responses_rig.Rig
) -> None:
    receiver = rig.receive(answer(410), answer(204))
    made = endpoint(client, receiver)
    answering.answer(answering.create().id, "An answer.")
    sender = rig.send()
    [gone] = settled(api, made.id, 1)
    assert (gone["status"], gone["attempts"]) == ("failed", 1)
    found: WebhookEndpoint = client.webhooks.retrieve(made.id)
    assert "410" in str(found.to_dict()["disabled_reason"])
    rig.notify(receiver.url)  # a job's own webhook to the same address
    sender.wake()
    receiver.wait(2)


def test_deleting_an_endpoint_holds_up_nobody(
    api: Api, client: OpenAI, rig: Rig, answering: responses_rig.Rig
) -> None:
    receiver = rig.receive(answer_late)
    made = endpoint(client, receiver)
    answering.answer(answering.create().id, "An answer.")
    rig.send()
    receiver.wait(1)
    later = answering.create().id
    answering.worker.claim(answering.job_of(later))
    with api.engine.begin() as connection:
        own = uuid.UUID(hex=made.id.removeprefix("whe_"))
        connection.execute(text("DELETE FROM webhook_endpoints WHERE id = :id"), {"id": own})
        recording = threading.Thread(target=answering.end, args=(later, "An answer."))
        recording.start()
        recording.join(5.0)
        assert not recording.is_alive()
    assert client.responses.retrieve(later).status == "completed"
    receiver.released.set()
    kept = rig.receive()
    endpoint(client, kept)
    answering.answer(answering.create().id, "An answer.")
    kept.wait(1)
    with api.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM webhook_deliveries")).scalar_one() == 1


def test_a_job_that_is_no_response_asks_for_no_endpoint(api: Api, client: OpenAI, rig: Rig) -> None:
    endpoint(client, rig.receive())
    job, statements = api.accept(), list[str]()
    api.worker().claim(job)
    event.listen(api.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    api.worker().succeed(job, "An answer.")
    assert statements
    assert not [one for one in statements if "webhook_endpoints" in one]


def test_old_deliveries_are_forgotten(api: Api, client: OpenAI, rig: Rig) -> None:
    made = endpoint(client, rig.receive())
    rig.send()
    for _ in range(2):
        client.webhooks.test(made.id, event_type="batch.completed")
    newest, oldest = settled(api, made.id, 2)
    rig.execute(
        f"UPDATE webhook_deliveries SET created_at = now() - interval '2 days' WHERE id = '{oldest['id']}'"
    )
    with api.engine.begin() as connection:
        assert endpoint_deliveries.forget(connection, 86_400.0) == 1
    assert deliveries(api, made.id)["data"] == [newest]
