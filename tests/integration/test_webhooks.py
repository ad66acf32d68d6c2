"""Webhooks to real receivers: signatures, retries, redelivery, several senders, crashes and outages."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import pytest
from openai import OpenAI
from sqlalchemy import Engine
from standardwebhooks import Webhook as Verifier
from structlog.testing import capture_logs

from jobs.domain import clock
from jobs.secrets import Vault, new_signing_secret
from jobs.settings import Settings, SettingsError
from jobs.store import job_deliveries, tenants
from tests.conftest import SECRET_KEY, JobMaker, Servers
from tests.waiting import until
from tests.webhook_rig import EVENT, WAIT_S, Exchange, Rig, answer, answer_late, hang
from workers import webhooks

SENDER_PROCESS = """
import threading
from jobs.settings import load
from jobs.store.engine import open_engine
from workers.webhooks import WebhookSender

settings = load()
WebhookSender(settings, open_engine(settings.database_url)).start()
threading.Event().wait()
"""


@pytest.fixture
def rig(engine: Engine, settings: Settings, new_job: JobMaker) -> Iterator[Rig]:
    """Receivers, deliveries and senders."""
    with closing(Rig(engine, settings, new_job)) as made:
        yield made


def test_a_webhook_is_signed_so_that_standardwebhooks_and_openai_accept_it(
    rig: Rig, tenant: tenants.Tenant
) -> None:
    vault, receiver, own = Vault(rig.settings), rig.receive(), new_signing_secret()
    rig.notify(receiver.url)
    rig.notify(receiver.url, secret=vault.encrypt(own))
    rig.send()
    assert tenant.signing_secret is not None
    secrets = [vault.decrypt(tenant.signing_secret), own]
    rows = rig.ended(2)
    for request in receiver.wait(2):
        secret = secrets[[str(one.id) for one in rows].index(request.id)]
        event = Verifier(secret).verify(request.body, request.headers)
        assert (event["type"], event["id"]) == (EVENT, request.id)
        unwrapped = OpenAI(api_key="none").webhooks.unwrap(request.body, request.headers, secret=secret)
        assert str(unwrapped.type) == EVENT
        assert request.headers["content-type"] == "application/json"
        assert request.headers["user-agent"].startswith("Trilane/")
        assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert [one.status for one in rows] == ["delivered"] * 2


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503])
def test_a_failure_is_tried_again_with_the_same_id_until_it_succeeds(rig: Rig, status: int) -> None:
    receiver = rig.receive(answer(status), answer(status), answer(200))
    rig.notify(receiver.url)
    rig.send()
    [one] = rig.ended()
    assert (one.status, one.codes) == ("delivered", [status, status, 200])
    assert one.errors == [f"answered {status}", f"answered {status}", ""]
    assert receiver.ids == [str(one.id)] * 3


def test_tries_are_used_up(rig: Rig) -> None:
    rig.notify(rig.receive(answer(500)).url)
    rig.send(retry_scale=1e-9)
    [one] = rig.ended()
    assert (one.status, one.codes) == ("failed", [500] * 10)


def test_retry_after_is_honoured(rig: Rig) -> None:
    rig.notify(rig.receive(answer(503, Retry_After="3600")).url)
    before = clock.now()
    rig.send()
    one = rig.attempted()
    assert one.status == "pending"
    assert one.next_attempt_at is not None
    assert timedelta(seconds=3_599) < one.next_attempt_at - before < timedelta(seconds=4_000)


def test_a_receiver_that_is_gone_gets_nothing_more_until_a_redelivery(rig: Rig) -> None:
    receiver = rig.receive(answer(410), answer(204))
    rig.notify(receiver.url)
    sender = rig.send()
    [first] = rig.ended()
    assert (first.status, first.codes) == ("failed", [410])
    rig.notify(receiver.url)
    sender.wake()
    later = rig.ended(2)[1]
    assert (later.status, later.codes) == ("failed", [None])
    assert "gone" in later.errors[0]
    assert len(receiver.ids) == 1
    with rig.engine.begin() as connection:
        assert job_deliveries.redeliver(connection, first.job_id, first.id)
    rig.notify(receiver.url)
    sender.wake()
    newest = rig.ended(3)[2]
    assert sorted(receiver.ids) == sorted([str(first.id), str(first.id), str(newest.id)])


def test_a_redirect_is_a_failure_and_not_followed(rig: Rig) -> None:
    elsewhere = rig.receive()
    rig.notify(rig.receive(answer(307, Location=elsewhere.url), answer(200)).url)
    rig.send()
    [one] = rig.ended()
    assert one.codes == [307, 200]
    assert one.errors == ["answered 307; redirects are not followed", ""]
    assert elsewhere.ids == []


def test_two_senders_deliver_each_event_once(rig: Rig) -> None:
    receivers = [rig.receive(), rig.receive()]
    for receiver in receivers:
        rig.notify(receiver.url, 60)
    for _ in range(2):
        rig.send(per_host=8)
    rows = rig.ended(120)
    assert {one.status for one in rows} == {"delivered"}
    assert sorted(receivers[0].ids + receivers[1].ids) == [str(one.id) for one in rows]


def test_a_sender_killed_before_it_settles_leaves_the_delivery_to_another_with_the_same_id(
    rig: Rig, database_url: str
) -> None:
    killed = threading.Event()

    def kill(exchange: Exchange) -> None:
        os.kill(process.pid, signal.SIGKILL)
        killed.set()

    receiver = rig.receive(kill, answer(204))
    rig.notify(receiver.url)
    environment = {
        "TRILANE_DATABASE_URL": database_url,
        "TRILANE_SECRET_KEY": SECRET_KEY,
        "TRILANE_WEBHOOKS__ALLOW": '["127.0.0.0/8"]',
    }
    process = subprocess.Popen([sys.executable, "-c", SENDER_PROCESS], env={**os.environ, **environment})
    assert killed.wait(WAIT_S)
    process.wait(WAIT_S)
    rig.send()
    rig.execute("UPDATE webhook_deliveries SET next_attempt_at = now()")  # The lease ends, before its time.
    [one] = rig.ended()
    assert (one.status, one.codes) == ("delivered", [204])
    assert receiver.ids == [str(one.id)] * 2


def test_a_sender_waits_for_a_database_that_is_away_and_repeats_nothing(
    rig: Rig, servers: Servers, database_url: str
) -> None:
    name = database_url.rpartition("/")[2]
    receiver = rig.receive(answer_late)
    rig.notify(receiver.url)
    sender = rig.send(timeout_s=60.0)
    receiver.wait(1)
    servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
    servers.admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
    with capture_logs() as logs:
        receiver.released.set()
        until(lambda: [entry for entry in logs if entry["event"] == "webhook.database_away"])
    servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
    sender.wake()
    assert [one.status for one in rig.ended()] == ["delivered"]
    assert len(receiver.ids) == 1


def test_a_wake_sends_at_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "POLL_S", 3_600.0)
    receiver = rig.receive()
    sender = rig.send()
    rig.notify(receiver.url)
    sender.wake()
    receiver.wait(1)


def test_stopping_finishes_what_is_sent_and_takes_no_more(rig: Rig) -> None:
    receiver = rig.receive(answer_late)
    rig.notify(receiver.url, 10)
    sender = rig.send(concurrency=2, per_host=2)
    receiver.wait(2)
    stopping = threading.Thread(target=sender.stop, args=(WAIT_S,))
    stopping.start()
    until(lambda: sender.stopping)
    receiver.released.set()
    stopping.join(WAIT_S)
    assert sorted(one.status for one in rig.stored()) == ["delivered"] * 2 + ["pending"] * 8


def test_stopping_leaves_a_hung_delivery_to_its_lease(rig: Rig) -> None:
    receiver = rig.receive(hang)
    rig.notify(receiver.url)
    sender = rig.send(timeout_s=600.0)
    receiver.wait(1)
    start = time.monotonic()
    sender.stop(0.2)
    sender.wake()
    assert time.monotonic() - start < 5
    [one] = rig.stored()
    assert (one.status, one.codes) == ("pending", [])


@pytest.mark.parametrize("secret", [None, "sealed by another key", "whsec_", "whsec_*"])
def test_a_secret_that_is_missing_or_cannot_be_used_sends_nothing(rig: Rig, secret: str | None) -> None:
    receiver = rig.receive()
    if secret is None:
        rig.execute("UPDATE tenants SET signing_secret = NULL")
    elif secret.startswith("whsec_"):
        secret = Vault(rig.settings).encrypt(secret)
    rig.notify(receiver.url, secret=secret)
    rig.send(retry_scale=1.0)
    one = rig.attempted()
    assert one.codes == [None]
    assert "secret" in one.errors[0]
    assert receiver.ids == []


def test_neither_a_secret_nor_a_query_is_logged(rig: Rig) -> None:
    receiver, own = rig.receive(answer(500), answer(410)), new_signing_secret()
    with capture_logs() as logs:
        rig.notify(f"{receiver.url}?token=canary", secret=Vault(rig.settings).encrypt(own))
        rig.send()
        [one] = rig.ended()
    assert [entry["event"] for entry in logs] == ["webhook.failed"] * 2
    for hidden in ("canary", own.removeprefix("whsec_")):
        assert hidden not in f"{logs} {one.errors}"


def test_a_delivery_whose_job_was_forgotten_meanwhile_stops_no_other(rig: Rig) -> None:
    def forget(exchange: Exchange) -> None:
        rig.execute("DELETE FROM jobs")
        exchange.answer(204, {})

    receiver = rig.receive(forget, answer(204))
    rig.notify(receiver.url)
    sender = rig.send()
    receiver.wait(1)
    until(lambda: not rig.stored())
    rig.notify(receiver.url)
    sender.wake()
    assert [one.status for one in rig.ended()] == ["delivered"]


def test_a_wrong_network_is_named_before_anything_is_sent(rig: Rig) -> None:
    with pytest.raises(SettingsError, match=r"webhooks\.allow"):
        rig.send(allow=("localhost",))
