"""Errors and limits as the official client meets them: its own retries work against them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from openai import DefaultHttpxClient, OpenAI
from sqlalchemy import Engine

from jobs.settings import Settings
from jobs.store.tenants import Tenant
from tests.api import Api, serving
from tests.conftest import Servers
from tests.processes import Processes
from tests.responses_rig import refused
from trilane.stack import ports

MODEL = "SmolLM2-135M-Instruct"
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is a queue?"}],
    "service_tier": "priority",
}


class Answers:
    """The answers that a client got, its retries' too; `told` is called with each."""

    def __init__(self, told: Callable[[Any], None] = lambda answer: None) -> None:
        self._told = told
        self.got: list[Any] = []

    def __call__(self, answer: Any) -> None:
        self.got.append(answer)
        self._told(answer)

    @property
    def statuses(self) -> list[int]:
        """Their statuses."""
        return [answer.status_code for answer in self.got]


@contextmanager
def client_of(api: Api, answers: Answers, max_retries: int = 2) -> Iterator[OpenAI]:
    with DefaultHttpxClient(event_hooks={"response": [answers]}, timeout=20) as http:
        yield OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=max_retries, http_client=http)


def limited(settings: Settings, **limits: int) -> Settings:
    return settings.model_copy(update={"api": settings.api.model_copy(update=limits)})


# --- names ----------------------------------------------------------------------------------------------


def test_every_answer_has_an_id_of_its_own_and_a_time(api: Api) -> None:
    paths = ("/v1/models", "/v1/models/none", "/v1/jobs", "/v1/jobs/none", "/healthz", "/nowhere", "/docs")
    answers = [api.client.get(path) for path in paths] + [api.client.post("/v1/chat/completions")]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)
    for answer in answers:
        assert answer.headers["x-request-id"].startswith("req_")
        assert int(answer.headers["openai-processing-ms"]) >= 0


def test_a_wrong_key_is_an_authentication_error(api: Api) -> None:
    client = OpenAI(base_url=f"{api.url}/v1", api_key="wrong", max_retries=0)
    error = refused(client.chat.completions.create, **ASKED)
    assert (error.status_code, error.type, error.code) == (401, "authentication_error", "invalid_api_key")
    assert error.request_id is not None
    assert (
        api.client.get("/v1/jobs", headers={"Authorization": "x"}).json()["error"]["code"] == "unauthorized"
    )


def test_paths_of_openai_answer_400_where_ours_answer_422(api: Api) -> None:
    wrong: dict[str, Any] = {"temperature": 9}
    ours = api.post(kind="chat", prompt="a", **wrong)
    theirs = [
        api.post("/v1/chat/completions", **ASKED, **wrong),
        api.post("/v1/responses", input="a", **wrong),
        api.post("/v1/batches", endpoint="/v1/embeddings"),
        api.client.get("/v1/files", params={"limit": 0}),
        api.client.get("/v1/responses/none", params={"stream": "perhaps"}),
    ]
    assert ours.status_code == 422
    assert {answer.status_code for answer in theirs} == {400}
    for answer in (ours, *theirs):
        error = answer.json()["error"]
        assert error.keys() == {"type", "code", "message", "field", "param", "limit", "remedy"}
        assert (error["type"], error["param"]) == ("invalid_request_error", error["field"])


def test_a_prompt_that_is_too_long_is_named_as_each_side_knows_it(api: Api) -> None:
    long = "word " * 40_000
    ours = api.post(kind="report", prompt=long, windows=False)
    assert (ours.status_code, ours.json()["error"]["code"]) == (413, "prompt_too_long")
    for path, body in (
        ("/v1/chat/completions", ASKED | {"messages": [{"role": "user", "content": long}]}),
        ("/v1/responses", {"input": long}),
    ):
        answer = api.post(path, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded"), path


def test_the_document_tells_the_statuses_that_are_answered(api: Api) -> None:
    paths = api.client.get("/openapi.json").json()["paths"]
    chat = paths["/v1/chat/completions"]["post"]["responses"]
    assert {"200", "400", "401", "409", "429", "503"} <= set(chat)
    assert "422" not in chat
    assert "422" in paths["/v1/jobs"]["post"]["responses"]


# --- limits ---------------------------------------------------------------------------------------------


@pytest.fixture
def few_tokens(settings: Settings, engine: Engine, tenant: Tenant) -> Iterator[Api]:
    """An API that gives 6,000 tokens a minute, which is one every 10 ms."""
    with serving(limited(settings, requests_per_minute=100, tokens_per_minute=6_000), engine, tenant) as api:
        yield api


def test_a_client_that_asks_too_much_waits_as_it_is_told_and_gets_its_answer(
    few_tokens: Api, processes: Processes
) -> None:
    processes.worker("hot,warm,cold")
    answers = Answers()
    with client_of(few_tokens, answers) as client:
        client.chat.completions.create(**ASKED, max_tokens=5_800)
        assert client.chat.completions.create(**ASKED, max_tokens=300).choices[0].message.content
    first, refusal, *_, last = answers.got
    assert (answers.statuses[0], answers.statuses[1], answers.statuses[-1]) == (200, 429, 200)
    assert first.headers["x-ratelimit-limit-requests"] == "100"
    assert first.headers["x-ratelimit-remaining-requests"] == "99"
    assert first.headers["x-ratelimit-reset-requests"] == "600ms"
    assert first.headers["x-ratelimit-limit-tokens"] == "6000"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 200
    assert first.headers["x-ratelimit-reset-tokens"].endswith("s")
    error = refusal.json()["error"]
    assert (error["type"], error["code"], error["limit"]) == (
        "rate_limit_error",
        "rate_limit_exceeded",
        6_000,
    )
    wait_ms = int(refusal.headers["retry-after-ms"])
    assert 0 < wait_ms < 4_000
    assert int(refusal.headers["retry-after"]) == -(-wait_ms // 1_000)
    assert int(last.headers["x-ratelimit-remaining-requests"]) < 100  # a refusal takes nothing


def test_each_tenant_has_its_own_minute_over_all_that_make_jobs(
    settings: Settings, engine: Engine, tenant: Tenant
) -> None:
    with serving(limited(settings, requests_per_minute=3), engine, tenant) as api:
        made = [
            api.post(kind="chat", prompt="a"),
            api.post("/v1/responses", input="a", background=True),
            api.post(kind="chat", prompt="a"),
            api.post("/v1/responses", input="a", background=True),
            api.post("/v1/chat/completions", **ASKED),
        ]
        assert [answer.status_code for answer in made] == [202, 200, 202, 429, 429]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in made] == [
            "2",
            "1",
            "0",
            "0",
            "0",
        ]
        assert "x-ratelimit-limit-tokens" not in made[0].headers
        assert api.client.get("/v1/jobs").status_code == 200  # looking costs nothing
        other = {"Authorization": f"Bearer {api.key_of('other')}"}
        answer = api.client.post("/v1/jobs", json={"kind": "chat", "prompt": "a"}, headers=other)
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"


def test_a_repeat_costs_nothing_and_what_can_never_fit_is_not_tried_again(few_tokens: Api) -> None:
    answers = Answers()
    with client_of(few_tokens, answers) as client:
        for _ in range(2):
            client.responses.create(
                model=MODEL, input="a", background=True, extra_headers={"Idempotency-Key": "one"}
            )
        assert "x-ratelimit-remaining-requests" not in answers.got[1].headers
        error = refused(client.chat.completions.create, **ASKED | {"service_tier": "flex"}, max_tokens=7_000)
    assert (error.status_code, error.code) == (429, "rate_limit_exceeded")
    assert answers.statuses == [200, 200, 429]


def test_without_redis_everything_is_let_through(settings: Settings, engine: Engine, tenant: Tenant) -> None:
    away = limited(settings, requests_per_minute=1).model_copy(
        update={"redis_url": f"redis://127.0.0.1:{ports.free()}/0"}
    )
    with serving(away, engine, tenant) as api:
        answers = [api.post(kind="chat", prompt="a") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202, 202, 202]


def test_buckets_do_not_outlive_a_minute(few_tokens: Api, settings: Settings) -> None:
    few_tokens.accept()
    connection: Any = redis.Redis.from_url(settings.redis_url)
    keys = connection.keys("limit:*")
    assert len(keys) == 2
    assert all(0 < connection.pttl(key) <= 60_000 for key in keys)


# --- outages --------------------------------------------------------------------------------------------


def test_a_client_that_meets_an_outage_gets_its_answer_after_it(
    api: Api, servers: Servers, settings: Settings
) -> None:
    name = settings.database_url.rpartition("/")[2]

    def switch(open_: bool) -> None:
        servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {open_}")
        if not open_:
            servers.admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")

    def told(answer: Any) -> None:
        if answer.status_code == 503:
            switch(True)

    api.client.get("/v1/jobs")  # so that the key is known and the outage met behind it
    answers = Answers(told)
    with client_of(api, answers) as client:
        switch(False)
        created = client.responses.create(model=MODEL, input="What is a queue?", background=True)
    assert created.status == "queued"
    assert answers.statuses == [503, 200]
    assert answers.got[0].headers["retry-after"] == "2"
    assert answers.got[0].json()["error"]["code"] == "database_unavailable"
    assert api.rows() == 1
