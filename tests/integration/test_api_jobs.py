"""The routes of jobs over HTTP: submit and its refusals, idempotency, reads, moves, tenants, lost servers."""

import json
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import httpx
import pytest
import redis as redis_client
from sqlalchemy import Engine, text

from jobs.domain import clock
from jobs.live import LiveEvent
from jobs.settings import Settings, load
from jobs.store import lanes, tenants
from jobs.store.tenants import Tenant
from producer.api import services
from producer.api.errors import STATUS
from producer.refusals import Code
from tests.api import Api, serving
from tests.conftest import SECRET_KEY, Servers
from tests.waiting import until

CHAT: dict[str, Any] = {"kind": "chat", "prompt": "What is a queue?"}


def refused(answer: httpx.Response, code: Code, field: str | None = None) -> dict[str, Any]:
    """Check that the answer is this refusal, in the one shape; returns its body."""
    body = answer.json()
    assert set(body["error"]) == {"type", "code", "message", "field", "param", "limit", "remedy"}
    error: dict[str, Any] = body["error"]
    assert (answer.status_code, error["code"], error["field"]) == (STATUS[code], code.value, field)
    assert error["param"] == error["field"]
    return error


def test_a_job_is_accepted_stored_announced_and_read_back(api: Api, redis_url: str) -> None:
    answer = api.post(
        kind="ticket",
        messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": "你好"}],
        max_completion_tokens=20,
        temperature=0,
        top_p=1,
        stop="END",
        seed=-7,
        priority=1,
        deadline_s=90,
        max_attempts=5,
        metadata={"ticket": "4711"},
        webhook={"url": "https://8.8.8.8/hook", "events": ["job.failed", "job.failed"]},
    )
    assert answer.status_code == 202
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert (job["status"], job["lane"], job["kind"], job["priority"]) == ("queued", "warm", "ticket", 1)
    assert job["webhook"] == {"url": "https://8.8.8.8/hook", "events": ["job.failed"]}
    assert (job["result"], job["latency"], job["error"]) == (None, [], None)
    assert api.client.get(answer.headers["location"]).json() == job
    with api.engine.begin() as connection:
        stored = connection.execute(text("SELECT request FROM jobs")).scalar_one()
    assert stored["messages"][1] == {"role": "user", "content": "你好"}
    assert stored["sampling"] == {
        "max_tokens": 20,
        "temperature": 0.0,
        "top_p": 1.0,
        "seed": -7,
        "stop": ["END"],
    }
    with redis_client.Redis.from_url(redis_url) as broker:
        [message] = broker.lrange("warm.urgent", 0, -1)
    assert job["id"] in json.loads(message)["headers"]["argsrepr"]


BAD: list[tuple[str, Any, Code, str | None]] = [
    ("no json", "{", Code.INVALID_JSON, None),
    ("not utf-8", b'{"kind": "\xff"}', Code.INVALID_JSON, None),
    ("too deep", "[" * 100_000, Code.INVALID_JSON, None),
    ("a huge number", '{"seed": ' + "9" * 5_000 + "}", Code.INVALID_JSON, None),
    ("NaN", '{"kind": "chat", "prompt": "x", "temperature": NaN}', Code.INVALID_JSON, None),
    ("infinity", '{"kind": "chat", "prompt": "x", "temperature": 1e999}', Code.OUT_OF_RANGE, "temperature"),
    ("a field twice", '{"kind": "chat", "prompt": "x", "prompt": "y"}', Code.DUPLICATE_FIELD, "prompt"),
    ("no object", "[]", Code.WRONG_TYPE, None),
    ("no body", "", Code.INVALID_JSON, None),
    ("no kind", {"prompt": "x"}, Code.MISSING_FIELD, "kind"),
    ("an unknown kind", {**CHAT, "kind": "poem"}, Code.UNKNOWN_KIND, "kind"),
    ("an unknown lane", {**CHAT, "lane": "lukewarm"}, Code.UNKNOWN_LANE, "lane"),
    ("an unknown model", {**CHAT, "model": "gpt-9"}, Code.UNKNOWN_MODEL, "model"),
    ("an unknown field", {**CHAT, "promt": "x"}, Code.UNKNOWN_FIELD, "promt"),
    ("an unknown field inside", {"kind": "chat", "messages": [{"role": "user", "content": "x", "name": "y"}]},
     Code.UNKNOWN_FIELD, "messages[0].name"),
    ("no prompt", {"kind": "chat"}, Code.MISSING_FIELD, "messages"),
    ("prompt and messages", {**CHAT, "messages": [{"role": "user", "content": "x"}]},
     Code.CONFLICTING_FIELDS, "messages"),
    ("a blank prompt", {**CHAT, "prompt": " \n"}, Code.EMPTY, "prompt"),
    ("no messages", {"kind": "chat", "messages": []}, Code.EMPTY, "messages"),
    ("a blank message", {"kind": "chat", "messages": [{"role": "user", "content": ""}]},
     Code.EMPTY, "messages[0].content"),
    ("a bad role", {"kind": "chat", "messages": [{"role": "robot", "content": "x"}]},
     Code.INVALID_VALUE, "messages[0].role"),
    ("too many messages", {"kind": "chat", "messages": [{"role": "user", "content": "x"}] * 257},
     Code.TOO_LONG, "messages"),
    ("NUL", {**CHAT, "prompt": "a\0b"}, Code.UNSTORABLE_TEXT, "prompt"),
    ("a lone surrogate", '{"kind": "chat", "prompt": "\\ud800"}', Code.UNSTORABLE_TEXT, "prompt"),
    ("NUL in metadata", {**CHAT, "metadata": {"k": "\0"}}, Code.UNSTORABLE_TEXT, "metadata.k"),
    ("a number for text", {**CHAT, "prompt": 3}, Code.WRONG_TYPE, "prompt"),
    ("text for a number", {**CHAT, "temperature": "1"}, Code.WRONG_TYPE, "temperature"),
    ("true for a number", {**CHAT, "priority": True}, Code.WRONG_TYPE, "priority"),
    ("a fraction", {**CHAT, "max_tokens": 1.5}, Code.WRONG_TYPE, "max_tokens"),
    ("no tokens", {**CHAT, "max_tokens": 0}, Code.OUT_OF_RANGE, "max_tokens"),
    ("two limits", {**CHAT, "max_tokens": 5, "max_completion_tokens": 6},
     Code.CONFLICTING_FIELDS, "max_completion_tokens"),
    ("hot temperature", {**CHAT, "temperature": 2.1}, Code.OUT_OF_RANGE, "temperature"),
    ("top_p", {**CHAT, "top_p": -0.1}, Code.OUT_OF_RANGE, "top_p"),
    ("penalty", {**CHAT, "presence_penalty": 3}, Code.OUT_OF_RANGE, "presence_penalty"),
    ("a long seed", {**CHAT, "seed": 2**63}, Code.OUT_OF_RANGE, "seed"),
    ("five stops", {**CHAT, "stop": ["a", "b", "c", "d", "e"]}, Code.TOO_LONG, "stop"),
    ("an empty stop", {**CHAT, "stop": ""}, Code.EMPTY, "stop[0]"),
    ("priority", {**CHAT, "priority": 10}, Code.OUT_OF_RANGE, "priority"),
    ("attempts", {**CHAT, "max_attempts": 21}, Code.OUT_OF_RANGE, "max_attempts"),
    ("a deadline in the past", {**CHAT, "deadline_s": -1}, Code.OUT_OF_RANGE, "deadline_s"),
    ("a far deadline", {**CHAT, "deadline_s": 1e12}, Code.OUT_OF_RANGE, "deadline_s"),
    ("a naive time", {**CHAT, "not_before": "2030-01-01T00:00:00"}, Code.INVALID_VALUE, "not_before"),
    ("a number for a time", {**CHAT, "not_before": 1_900_000_000}, Code.INVALID_VALUE, "not_before"),
    ("before the calendar", {**CHAT, "not_before": "0001-01-01T00:00:00+14:00"},
     Code.OUT_OF_RANGE, "not_before"),
    ("a start after the deadline", {**CHAT, "not_before": "2999-01-01T00:00:00Z"},
     Code.NOT_BEFORE_PAST_DEADLINE, "not_before"),
    ("many metadata", {**CHAT, "metadata": {str(n): "" for n in range(17)}}, Code.TOO_LONG, "metadata"),
    ("a long key", {**CHAT, "metadata": {"k" * 65: ""}}, Code.TOO_LONG, "metadata." + "k" * 65),
    ("a number in metadata", {**CHAT, "metadata": {"k": 1}}, Code.WRONG_TYPE, "metadata.k"),
    ("no url", {**CHAT, "webhook": {}}, Code.MISSING_FIELD, "webhook.url"),
    ("a private target", {**CHAT, "webhook": {"url": "http://127.0.0.1/"}},
     Code.WEBHOOK_TARGET_REFUSED, "webhook.url"),
    ("a metadata service", {**CHAT, "webhook": {"url": "http://169.254.169.254/"}},
     Code.WEBHOOK_TARGET_REFUSED, "webhook.url"),
    ("no web address", {**CHAT, "webhook": {"url": "file:///etc/passwd"}},
     Code.WEBHOOK_TARGET_REFUSED, "webhook.url"),
    ("an unknown event", {**CHAT, "webhook": {"url": "https://8.8.8.8", "events": ["job.born"]}},
     Code.INVALID_VALUE, "webhook.events[0]"),
    ("no events", {**CHAT, "webhook": {"url": "https://8.8.8.8", "events": []}},
     Code.EMPTY, "webhook.events"),
    ("a weak secret", {**CHAT, "webhook": {"url": "https://8.8.8.8", "secret": "whsec_c2hvcnQ="}},
     Code.INVALID_VALUE, "webhook.secret"),
    ("too long for any lane", {**CHAT, "max_tokens": 40_000}, Code.PROMPT_TOO_LONG, "prompt"),
]  # fmt: skip


def test_what_is_wrong_is_refused_by_name_and_stores_nothing(api: Api) -> None:
    for name, body, code, field in BAD:
        content = json.dumps(body) if isinstance(body, dict) else body
        answer = api.client.post("/v1/jobs", content=content)
        assert answer.status_code == STATUS[code], (name, answer.text)
        refused(answer, code, field)
    assert api.rows() == 0


def test_a_prompt_too_long_for_its_lane_is_told_which_one_fits(api: Api) -> None:
    error = refused(
        api.post(kind="chat", prompt="word " * 4_200, lane="hot", max_tokens=10),
        Code.PROMPT_TOO_LONG,
        "prompt",
    )
    assert error["limit"] == 4_096
    assert "warm" in error["remedy"]
    assert api.post(kind="chat", prompt="word " * 4_200, max_tokens=10).json()["lane"] == "cold"


def test_the_body_limit_holds_while_the_body_comes(api: Api) -> None:
    limit = api.settings.api.max_body_bytes

    def endless() -> Any:
        for _ in range(limit // 65_536 + 2):
            yield b" " * 65_536

    error = refused(api.client.post("/v1/jobs", content=endless()), Code.BODY_TOO_LARGE)
    assert error["limit"] == limit
    assert api.rows() == 0


def test_a_repeat_answers_the_same_job_and_another_payload_conflicts(api: Api) -> None:
    def post(body: str, key: str = "k-1") -> httpx.Response:
        return api.client.post("/v1/jobs", content=body, headers={"Idempotency-Key": key})

    first = post(json.dumps(CHAT))
    assert (first.status_code, first.headers.get("idempotent-replayed")) == (202, None)
    api.worker().claim(first.json()["id"])
    api.worker().succeed(first.json()["id"], "Orderly.")
    again = post(json.dumps(CHAT))
    assert (again.status_code, again.headers["idempotent-replayed"]) == (200, "true")
    assert again.json()["id"] == first.json()["id"]
    assert again.json()["result"]["output"] == "Orderly."
    refused(post(json.dumps(CHAT) + " "), Code.IDEMPOTENCY_CONFLICT, "Idempotency-Key")
    refused(post("{}"), Code.IDEMPOTENCY_CONFLICT, "Idempotency-Key")
    for bad in ("", "k" * 256):
        refused(post(json.dumps(CHAT), bad), Code.INVALID_VALUE, "Idempotency-Key")
    assert api.rows() == 1


def test_a_key_sent_many_times_at_once_makes_one_job(api: Api) -> None:
    def post(_: int) -> httpx.Response:
        return api.client.post("/v1/jobs", json=CHAT, headers={"Idempotency-Key": "once"})

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(post, range(32)))
    assert sorted(answer.status_code for answer in answers) == [200] * 31 + [202]
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert api.rows() == 1


def test_a_tenant_reaches_only_its_own_jobs(api: Api) -> None:
    job_id = api.accept()
    other = {"Authorization": f"Bearer {api.key_of('other')}"}
    routes = [
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/webhooks"),
        ("POST", "/cancel"),
        ("POST", "/redrive"),
    ]
    routes.append(("POST", f"/webhooks/{uuid.uuid4()}/redeliver"))
    for method, path in routes:
        for which in (job_id, str(uuid.uuid4()), "no-id"):
            answer = api.client.request(method, f"/v1/jobs/{which}{path}", headers=other)
            refused(answer, Code.JOB_NOT_FOUND)
    assert api.client.get("/v1/jobs", headers=other).json()["data"] == []
    assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"


def test_every_route_asks_for_a_key(api: Api) -> None:
    with httpx.Client(base_url=api.url) as stranger:
        document = stranger.get("/openapi.json").json()
        paths = [(path, method) for path, item in document["paths"].items() for method in item]
        assert len(paths) >= 11
        for path, method in paths:
            if path.startswith("/v1/"):
                answer = stranger.request(method, re.sub(r"{.*?}", str(uuid.uuid4()), path))
                assert (answer.status_code, answer.json()["error"]["field"]) == (401, "Authorization")
                assert answer.headers["www-authenticate"] == "Bearer"
        for header in ("Bearer", "Bearer trl_unknown", "Basic eDp5", "bearer \xe9"):
            answer = stranger.get("/v1/jobs", headers=[(b"authorization", header.encode("latin-1"))])
            refused(answer, Code.UNAUTHORIZED, "Authorization")
        assert stranger.get("/docs").status_code == 200


def test_a_revoked_key_ends_within_seconds(api: Api) -> None:
    assert api.client.get("/v1/jobs").status_code == 200
    with api.engine.begin() as connection:
        [info] = tenants.keys(connection)
        assert tenants.revoke_key(connection, info.id)
    until(lambda: api.client.get("/v1/jobs").status_code == 401, timeout_s=5, what="the key's end")


def test_lists_are_filtered_and_paged_newest_first(api: Api) -> None:
    chats = [api.accept() for _ in range(5)]
    ticket = api.accept(kind="ticket")
    api.post(f"/v1/jobs/{chats[0]}/cancel")

    def ids(**query: Any) -> list[str]:
        answer = api.client.get("/v1/jobs", params=query)
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    assert ids() == [ticket, *reversed(chats)]
    assert ids(lane="warm") == ids(kind="ticket") == [ticket]
    assert ids(status="cancelled") == [chats[0]]
    assert ids(created_after=(clock.now() + timedelta(hours=1)).isoformat()) == []
    assert len(ids(created_before=(clock.now() + timedelta(hours=1)).isoformat())) == 6
    page = api.client.get("/v1/jobs", params={"limit": 4}).json()
    assert (page["has_more"], page["next"]) == (True, page["data"][-1]["id"])
    rest = api.client.get("/v1/jobs", params={"limit": 4, "after": page["next"]}).json()
    assert [job["id"] for job in rest["data"]] == [chats[1], chats[0]]
    assert (rest["has_more"], rest["next"]) == (False, None)
    moved = api.accept(lane="cold")
    assert ids(kind="chat") == [moved, *reversed(chats)]
    assert ids(kind="chat", limit=3, after=chats[4]) == [chats[3], chats[2], chats[1]]
    assert ids(kind="chat", lane="cold", status="queued") == ids(lane="cold") == [moved]
    assert ids(kind="report") == ids(kind="ticket", lane="hot") == []


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("limit=0", Code.OUT_OF_RANGE),
        ("limit=x", Code.INVALID_VALUE),
        ("after=x", Code.INVALID_VALUE),
        ("status=done", Code.INVALID_VALUE),
        ("kind=poem", Code.UNKNOWN_KIND),
        ("lane=lukewarm", Code.UNKNOWN_LANE),
        ("created_after=2030-01-01T00:00:00", Code.INVALID_VALUE),
        ("stauts=queued", Code.UNKNOWN_FIELD),
    ],
)
def test_a_wrong_filter_is_refused_by_name(api: Api, query: str, code: Code) -> None:
    refused(api.client.get(f"/v1/jobs?{query}"), code, query.partition("=")[0])


def test_jobs_are_cancelled_and_redriven_only_from_where_they_may(api: Api, redis_url: str) -> None:
    worker = api.worker()
    queued, running, failed = api.accept(), api.accept(), api.accept()
    worker.claim(running)
    with redis_client.Redis.from_url(redis_url) as broker, broker.pubsub() as hints:
        hints.subscribe("trilane:cancel")
        until(lambda: hints.get_message(timeout=1), what="the subscription")
        for job_id in (queued, running, running):
            answer = api.post(f"/v1/jobs/{job_id}/cancel")
            assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        hint: Any = until(lambda: hints.get_message(timeout=1), what="the hint")
    assert hint["data"].decode() == running
    worker.claim(failed)
    worker.fail(failed)
    refused(api.post(f"/v1/jobs/{failed}/cancel"), Code.JOB_ENDED)
    refused(api.post(f"/v1/jobs/{queued}/redrive"), Code.JOB_NOT_FAILED)
    assert api.client.get(f"/v1/jobs/{failed}").json()["error"]["code"] == "engine_error"
    redriven = api.post(f"/v1/jobs/{failed}/redrive").json()
    assert (redriven["status"], redriven["redrives"], redriven["error"]) == ("queued", 1, None)


def test_a_done_job_shows_its_result_and_latency(api: Api) -> None:
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    worker.succeed(job_id, "Orderly.")
    job = api.client.get(f"/v1/jobs/{job_id}").json()
    assert job["status"] == "succeeded"
    assert job["result"] == {
        "output": "Orderly.",
        "finish_reason": "stop",
        "prompt_tokens": 12,
        "cached_tokens": 0,
        "output_tokens": 4,
        "choices": None,
        "windows": 0,
    }
    [attempt] = job["latency"]
    assert (attempt["attempt"], attempt["ttft_ms"], attempt["worker"]) == (1, 2.5, "by hand")


def test_deliveries_are_logged_and_sent_again(api: Api) -> None:
    job_id = api.accept(webhook={"url": "https://8.8.8.8/hook", "events": ["job.cancelled"]})
    assert api.client.get(f"/v1/jobs/{job_id}/webhooks").json() == {"data": []}
    api.post(f"/v1/jobs/{job_id}/cancel")
    with api.engine.begin() as connection:
        connection.execute(text("UPDATE webhook_deliveries SET status = 'failed', next_attempt_at = NULL"))
    [delivery] = api.client.get(f"/v1/jobs/{job_id}/webhooks").json()["data"]
    assert (delivery["event"], delivery["status"], delivery["attempt_log"]) == ("job.cancelled", "failed", [])
    again = api.post(f"/v1/jobs/{job_id}/webhooks/{delivery['id']}/redeliver")
    assert (again.status_code, again.json()["status"]) == (202, "pending")
    for unknown in (str(uuid.uuid4()), "x"):
        refused(api.post(f"/v1/jobs/{job_id}/webhooks/{unknown}/redeliver"), Code.DELIVERY_NOT_FOUND)


def test_errors_outside_the_routes_have_the_same_shape(api: Api) -> None:
    refused(api.client.get("/v2/jobs"), Code.NOT_FOUND)
    answer = api.client.delete("/v1/jobs")
    refused(answer, Code.METHOD_NOT_ALLOWED)
    assert answer.headers["allow"]


def test_a_webhook_without_any_secret_is_refused(api: Api) -> None:
    key = api.key_of("unsigned")
    body = {**CHAT, "webhook": {"url": "https://8.8.8.8/hook"}}
    answer = api.client.post("/v1/jobs", json=body, headers={"Authorization": f"Bearer {key}"})
    refused(answer, Code.WEBHOOK_UNSIGNED, "webhook.secret")


def test_without_redis_jobs_are_accepted_and_left_to_the_feeder(
    database_url: str, engine: Engine, tenant: Tenant
) -> None:
    settings = load(database_url=database_url, redis_url="redis://127.0.0.1:1/0", secret_key=SECRET_KEY)
    with serving(settings, engine, tenant) as api:
        job_id = api.accept()
        assert api.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
        api.accept()
        with engine.begin() as connection:
            announced = connection.execute(
                text("SELECT count(*) FROM jobs WHERE status = 'queued' AND announced_at IS NOT NULL")
            ).scalar_one()
        assert announced == 0
        answer = api.client.get("/readyz")
        assert (answer.status_code, answer.json()["broker"]) == (503, "missing")
        assert 'trilane_up{part="broker"} 0.0' in api.client.get("/metrics").text


def test_without_postgres_every_route_says_so_and_recovers(
    servers: Servers, settings: Settings, engine: Engine, tenant: Tenant
) -> None:
    name = settings.database_url.rpartition("/")[2]
    with serving(settings, engine, tenant) as api:
        job_id = api.accept()
        engine.dispose()
        servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        servers.admin(cut)
        try:
            for method, path in (
                ("POST", "/v1/jobs"),
                ("GET", "/v1/jobs"),
                ("GET", f"/v1/jobs/{job_id}"),
                ("GET", f"/v1/jobs/{job_id}/events"),
                ("POST", f"/v1/jobs/{job_id}/cancel"),
                ("GET", "/v1/lanes"),
            ):
                answer = api.client.request(method, path, json=CHAT if path == "/v1/jobs" else None)
                refused(answer, Code.DATABASE_UNAVAILABLE)
                assert answer.headers["retry-after"]
            assert api.client.get("/readyz").json()["database"] == "missing"
            assert 'trilane_up{part="database"} 0.0' in api.client.get("/metrics").text
            assert api.client.get("/healthz").status_code == 200
        finally:
            servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
        assert api.client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"
        assert api.rows() == 1


def test_a_database_that_hangs_is_as_good_as_away(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "ANSWER_WITHIN_S", 0.2)
    job_id = api.accept()
    with api.engine.begin() as connection:
        connection.execute(text("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE"))
        for _ in range(api.settings.api.db_threads + 2):
            refused(api.client.get(f"/v1/jobs/{job_id}"), Code.DATABASE_UNAVAILABLE)
        assert api.client.get("/healthz").status_code == 200
    until(lambda: api.client.get(f"/v1/jobs/{job_id}").status_code == 200, what="the database")


def test_a_bug_is_answered_without_internals_and_logged_without_the_prompt(
    api: Api, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    canary = f"canary-{uuid.uuid4()}"

    def broken(*_: Any) -> Any:
        raise KeyError(canary)

    monkeypatch.setattr(lanes, "figures", broken)
    answer = api.client.get("/v1/lanes")
    refused(answer, Code.INTERNAL_ERROR)
    printed = "".join(capfd.readouterr())
    assert "request.crashed" in printed
    assert answer.headers["x-request-id"] in printed
    assert canary not in printed


def test_no_prompt_or_key_is_logged(api: Api, capfd: pytest.CaptureFixture[str]) -> None:
    canary = "canary-5122"
    job_id = api.accept(prompt=canary, metadata={"note": canary})
    api.worker().tell(job_id, "1-1", LiveEvent.TEXT, text=canary)
    api.post(kind="chat", prompt=canary, lane=canary)
    api.post(kind="chat", prompt=canary + "\0")
    api.post(f"/v1/jobs/{job_id}/cancel")
    with api.client.stream("GET", f"/v1/jobs/{job_id}/events") as stream:
        stream.read()
    printed = "".join(capfd.readouterr())
    assert canary not in printed
    assert api.key not in printed


def test_the_document_describes_every_route(api: Api) -> None:
    document = api.client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert schemas["Request"]["additionalProperties"] is False
    assert "ChatMessage" in schemas
    for path, item in document["paths"].items():
        for method, operation in item.items():
            assert operation["description"], (method, path)
            if path.startswith("/v1/"):
                assert {"401", "503"} <= set(operation["responses"]), (method, path)
    text_of = json.dumps(document)
    for reference in set(text_of.split('"$ref": "#/components/schemas/')[1:]):
        assert reference.partition('"')[0] in schemas
