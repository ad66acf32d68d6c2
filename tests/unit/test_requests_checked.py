"""How a request is checked, counted and routed before any database is asked."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain import clock
from jobs.domain.lanes import Kind
from jobs.secrets import Vault, new_signing_secret
from jobs.settings import load
from jobs.store.tenants import Tenant
from producer.api.errors import STATUS
from producer.prepare import Idempotency, Preparer
from producer.refusals import Code, Refusal
from producer.request import DEFAULT_MAX_TOKENS, Request

KEY = "a secret key that only the tests know, and no one else"
SETTINGS = load(database_url="", redis_url="", secret_key=KEY, engine={"name": "sim"})
PREPARER = Preparer(SETTINGS)
TENANT = Tenant(uuid.uuid4(), "acme", None)


def prepare(**fields: Any) -> Any:
    return PREPARER.many(TENANT, [{"kind": "chat", "prompt": "x", **fields}])[0]


def test_every_code_has_one_status_and_all_are_errors() -> None:
    assert set(STATUS) == set(Code)
    assert all(400 <= status < 600 for status in STATUS.values())


@pytest.mark.parametrize("kind", list(Kind))
def test_each_kind_has_its_lane_and_its_longest_answer(kind: Kind) -> None:
    job = prepare(kind=kind.value)
    assert kind in SETTINGS.lanes[job.lane].kinds
    assert job.request["sampling"] == {"max_tokens": DEFAULT_MAX_TOKENS[kind]}
    assert job.deadline - clock.now() > timedelta(hours=23)


def test_a_short_ticket_is_warm_and_a_long_chat_cold() -> None:
    assert prepare(kind="ticket").lane == "warm"
    assert prepare(prompt="word " * 3_000).lane == "cold"
    assert prepare(prompt="word " * 3_000, lane="hot", max_tokens=50).lane == "hot"


def test_prompt_is_short_for_one_message_of_the_user() -> None:
    as_messages = PREPARER.one(TENANT, b'{"kind": "chat", "messages": [{"role": "user", "content": "x"}]}')
    assert as_messages.request == prepare().request


def test_a_start_that_has_passed_is_now() -> None:
    assert prepare(not_before=clock.now() - timedelta(days=1)).not_before is None
    later = clock.now() + timedelta(minutes=5)
    assert prepare(not_before=later.isoformat()).not_before == later


def test_a_webhook_secret_is_sealed_and_events_come_once() -> None:
    secret = new_signing_secret()
    events = ["job.failed", "job.started", "job.failed"]
    webhook = prepare(webhook={"url": "https://8.8.8.8/x", "secret": secret, "events": events}).webhook
    assert secret not in webhook.secret
    assert Vault(SETTINGS).decrypt(webhook.secret) == secret
    assert webhook.events == ("job.failed", "job.started")


def test_a_secret_cannot_be_kept_without_the_operators_key() -> None:
    unkeyed = Preparer(load(database_url="", redis_url="", engine={"name": "sim"}))
    body = {
        "kind": "chat",
        "prompt": "x",
        "webhook": {"url": "https://8.8.8.8", "secret": new_signing_secret()},
    }
    with pytest.raises(Refusal) as refused:
        unkeyed.many(TENANT, [body])
    assert refused.value.code is Code.WEBHOOK_UNSIGNED


def test_equal_beginnings_have_equal_prefixes() -> None:
    beginning = [{"role": "system", "content": "s" * 600}]
    first, second = (
        prepare(prompt=None, messages=[*beginning, {"role": "user", "content": text}]) for text in "ab"
    )
    assert first.prefix == second.prefix != prepare().prefix


@pytest.mark.parametrize("key", ["", "k" * 256, "a\nb", "\ud800"])
def test_a_key_that_cannot_be_kept_is_refused(key: str) -> None:
    with pytest.raises(Refusal):
        Idempotency(key, b"")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(Request.model_fields)), json_values))
def test_any_values_make_a_job_or_a_refusal_that_can_be_shown(fields: dict[str, Any]) -> None:
    try:
        job = PREPARER.many(TENANT, [{"kind": "chat", "prompt": "x", **fields}])[0]
    except Refusal as refusal:
        assert f"{refusal.code} {refusal.message} {refusal.field} {refusal.limit}".encode()
    else:
        assert str(job.request).encode()


@given(st.binary())
def test_any_bytes_make_a_job_or_a_refusal(body: bytes) -> None:
    with pytest.raises(Refusal):
        PREPARER.one(TENANT, body)
