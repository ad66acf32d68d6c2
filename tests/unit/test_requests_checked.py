"""How a request is checked, counted and routed before any database is asked."""

import uuid
from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain import clock
from jobs.domain.lanes import Kind
from jobs.domain.requests import Sampling, from_json
from jobs.secrets import Vault, new_signing_secret
from jobs.settings import load
from jobs.store.tenants import Tenant
from producer.api.errors import STATUS
from producer.client import Options
from producer.prepare import Idempotency, Preparer
from producer.refusals import Code, Refusal
from producer.request import DEFAULT_MAX_TOKENS, Request
from producer.response_format import MAX_SCHEMA_CHARS, MAX_SCHEMA_DEPTH

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


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
EVERYTHING: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "seed": 7,
    "stop": ["end"],
    "presence_penalty": 1.0,
    "frequency_penalty": -1.0,
    "top_k": 40,
    "min_p": 0.1,
    "n": 3,
    "logprobs": True,
    "top_logprobs": 5,
    "logit_bias": {"17": -100, "18": 2.5},
    "bad_words": ["damn"],
    "response_format": FORMAT,
    "windows": False,
}


def test_every_sampling_parameter_reaches_the_engine() -> None:
    _, sampling = from_json(prepare(**EVERYTHING).request)
    assert {field.name for field in fields(Sampling)} == {"max_tokens", *EVERYTHING}
    given = EVERYTHING | {"stop": ("end",), "bad_words": ("damn",)}
    assert {name: getattr(sampling, name) for name in EVERYTHING} == given


def test_python_callers_have_every_parameter() -> None:
    assert (
        set(EVERYTHING)
        <= Options.__annotations__.keys()
        >= Request.model_fields.keys() - {"kind", "messages", "prompt", "max_completion_tokens"}
    )


def test_what_changes_nothing_is_not_stored() -> None:
    harmless = {"n": 1, "logprobs": False, "logit_bias": {}, "bad_words": [], "windows": True}
    assert prepare(**harmless, response_format={"type": "text"}).request == prepare().request


def schema_of_depth(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"top_k": -1}, Code.OUT_OF_RANGE, "top_k"),
        ({"top_k": 1.5}, Code.WRONG_TYPE, "top_k"),
        ({"min_p": 1.1}, Code.OUT_OF_RANGE, "min_p"),
        ({"n": 0}, Code.OUT_OF_RANGE, "n"),
        ({"n": 9}, Code.OUT_OF_RANGE, "n"),
        ({"n": 2, "temperature": 0.0}, Code.CONFLICTING_FIELDS, "n"),
        ({"logprobs": 1}, Code.WRONG_TYPE, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, Code.OUT_OF_RANGE, "top_logprobs"),
        ({"top_logprobs": 3}, Code.MISSING_FIELD, "logprobs"),
        ({"logit_bias": {"x": 1}}, Code.INVALID_VALUE, "logit_bias.x"),
        ({"logit_bias": {"٣": 1}}, Code.INVALID_VALUE, "logit_bias.٣"),
        ({"logit_bias": {"1": 101}}, Code.OUT_OF_RANGE, "logit_bias.1"),
        ({"logit_bias": {str(id): 1 for id in range(301)}}, Code.TOO_LONG, "logit_bias"),
        ({"bad_words": ["x"] * 65}, Code.TOO_LONG, "bad_words"),
        ({"bad_words": [""]}, Code.EMPTY, "bad_words[0]"),
        ({"response_format": {"type": "xml"}}, Code.INVALID_VALUE, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, Code.MISSING_FIELD, "response_format"),
        ({"response_format": {**FORMAT, "type": "text"}}, Code.CONFLICTING_FIELDS, "response_format"),
        ({"windows": "no"}, Code.WRONG_TYPE, "windows"),
    ],
)
def test_a_parameter_out_of_bounds_is_refused_by_name(fields: dict[str, Any], code: Code, field: str) -> None:
    with pytest.raises(Refusal) as refused:
        prepare(**fields)
    assert (refused.value.code, refused.value.field) == (code, f"[0].{field}")


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ({"description": "x" * MAX_SCHEMA_CHARS}, Code.TOO_LONG),
        (schema_of_depth(MAX_SCHEMA_DEPTH + 1), Code.TOO_LONG),
        (schema_of_depth(100_000), Code.TOO_LONG),
        ({"title": "\0"}, Code.UNSTORABLE_TEXT),
        ({"title": "\ud800"}, Code.INVALID_VALUE),
        ({"minimum": float("nan")}, Code.INVALID_VALUE),
        ({"enum": [object()]}, Code.INVALID_VALUE),
    ],
)
def test_a_schema_that_no_engine_should_see_is_refused(schema: dict[str, Any], code: Code) -> None:
    with pytest.raises(Refusal) as refused:
        prepare(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})
    assert refused.value.code is code
    assert (refused.value.field or "").endswith("response_format.json_schema.schema")


def test_a_deep_but_bounded_schema_is_taken() -> None:
    schema = schema_of_depth(MAX_SCHEMA_DEPTH)
    assert prepare(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})


# --- windows and speculation decide on the lane, too ---------------------------------------------------

LONG = "The sea is wide. " * 9_000  # 38,258 tokens by the estimate


def test_a_document_longer_than_every_lane_is_answered_in_windows() -> None:
    job = prepare(kind="report", prompt=LONG)
    assert (job.lane, job.prompt_tokens) == ("cold", 38_258)
    assert "windows" in job.request["routed"]
    assert "routed" not in prepare(kind="report").request


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"windows": False}, 32_768),
        ({"prompt": LONG * 3}, 98_816),
        ({"max_tokens": 31_000}, 32_768),
        ({"prompt": None, "messages": [{"role": r, "content": LONG} for r in ("system", "user")]}, 32_768),
    ],
)
def test_what_windows_cannot_take_is_refused_with_the_limit(fields: dict[str, Any], limit: int) -> None:
    with pytest.raises(Refusal) as refused:
        prepare(**{"kind": "report", "prompt": LONG, **fields})
    assert (refused.value.code, refused.value.limit) == (Code.PROMPT_TOO_LONG, limit)


def speculating(*lanes: str, **guards: Any) -> Preparer:
    engine = {"speculation": {"tokens": 2}}
    lane = {name: {"engine": engine, "guards": guards} for name in lanes}
    return Preparer(load(database_url="", redis_url="", secret_key=KEY, engine={"name": "sim"}, lane=lane))


def ticket(preparer: Preparer, **fields: Any) -> Any:
    return preparer.many(TENANT, [{"kind": "ticket", "prompt": "x", **fields}])[0]


@pytest.mark.parametrize("parameter", [{"logit_bias": {"5": 1}}, {"min_p": 0.1}])
def test_what_does_not_go_with_speculation_goes_to_a_slower_lane_and_says_so(
    parameter: dict[str, Any],
) -> None:
    job = ticket(speculating("warm"), **parameter)
    assert (job.lane, job.queue) == ("cold", "cold.normal")
    assert "warm decodes speculatively" in job.request["routed"]
    assert ticket(speculating("warm")).lane == "warm"
    assert ticket(speculating("warm"), min_p=0.0).lane == "warm"


@pytest.mark.parametrize("fields", [{"lane": "warm"}, {}])
def test_where_no_other_lane_may_take_it_the_parameter_is_named(fields: dict[str, Any]) -> None:
    preparer = speculating("warm") if fields else speculating("warm", "cold")
    with pytest.raises(Refusal) as refused:
        ticket(preparer, min_p=0.1, **fields)
    assert (refused.value.code, refused.value.field) == (Code.UNSUPPORTED_PARAMETER, "[0].min_p")
    assert STATUS[refused.value.code] == 400
    assert ("cold" in (refused.value.remedy or "")) == bool(fields)


def test_a_lane_with_favoured_phrases_does_not_speculate() -> None:
    assert ticket(speculating("warm", favoured_file="phrases.txt"), min_p=0.1).lane == "warm"


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
