"""Several models at once: each is listed with its lanes, and only its own workers answer for it."""

import json

import openai
import pytest
from openai import OpenAI
from sqlalchemy import Engine, text

from jobs.domain.lanes import queue_name
from jobs.settings import ModelSettings, Settings
from jobs.store import intake
from tests.api import Api
from tests.conftest import JobMaker
from tests.processes import Processes
from tests.responses_rig import refused
from tests.waiting import until

FIRST, FURTHER = "SmolLM2-135M-Instruct", "acme/Other-1.5B"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Settings with a further model, which the hot lane does not serve."""
    return settings.model_copy(update={"models": {FURTHER: ModelSettings(lanes=("warm", "cold"))}})


@pytest.fixture
def processes(processes: Processes, settings: Settings) -> Processes:
    """Processes that know both models."""
    models = {name: model.model_dump(mode="json") for name, model in settings.models.items()}
    processes.environment["TRILANE_MODELS"] = json.dumps(models)
    return processes


@pytest.fixture
def client(api: Api) -> OpenAI:
    return OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)


def ask(client: OpenAI, model: str, **given: str) -> str:
    """The id of the job of a background response."""
    created = client.responses.create(
        model=model,
        input="What is a queue?",
        background=True,
        max_output_tokens=4,
        extra_body=given,
    )
    return created.id


def test_models_are_listed_with_the_lanes_that_serve_them(client: OpenAI, processes: Processes) -> None:
    processes.worker("warm", model=FURTHER)
    first, further = client.models.list().data
    assert (first.id, first.object, first.owned_by, further.id) == (FIRST, "model", "trilane", FURTHER)
    shown = {model.id: (model.model_extra or {})["lanes"] for model in (first, further)}
    assert [(lane["name"], lane["service_tier"]) for lane in shown[FIRST]] == [
        ("hot", "priority"),
        ("warm", "default"),
        ("cold", "flex"),
    ]
    assert {lane["ready"] for lane in shown[FIRST]} == {False}
    assert [(lane["name"], lane["max_model_len"]) for lane in shown[FURTHER]] == [
        ("warm", 8_192),
        ("cold", 32_768),
    ]

    def ready() -> bool:
        lanes = (client.models.retrieve(FURTHER).model_extra or {})["lanes"]
        return [lane["ready"] for lane in lanes] == [True, False]

    until(ready, what="the further model's worker among the lanes")


def test_a_model_that_is_not_served_is_not_found(api: Api, client: OpenAI) -> None:
    for call in (
        lambda: client.models.retrieve("gpt-9"),
        lambda: client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "a"}]),
        lambda: ask(client, "gpt-9"),
    ):
        error = refused(call)
        assert isinstance(error, openai.NotFoundError)
        assert (error.code, error.param) == ("model_not_found", "model")
    ours = api.post(kind="chat", prompt="a", model="gpt-9")
    assert (ours.status_code, ours.json()["error"]["code"]) == (404, "unknown_model")
    assert api.rows() == 0


def test_each_model_is_answered_by_its_own_workers_alone(
    api: Api, client: OpenAI, processes: Processes, engine: Engine, new_job: JobMaker
) -> None:
    processes.control()
    processes.worker("warm", model=FURTHER)
    asked = {model: [ask(client, model) for _ in range(5)] for model in (FIRST, FURTHER)}
    with engine.begin() as connection:  # these are the feeder's to announce
        fed = [
            new_job(model=FIRST, queue=queue_name("warm", 5)),
            new_job(model=FURTHER, queue=queue_name("warm", 5, FURTHER)),
        ]
        intake.insert_many(connection, fed)

    def done(model: str) -> bool:
        return processes.count("jobs", f"status = 'succeeded' AND model = '{model}'") == 6

    until(lambda: done(FURTHER), what="the further model's answers")
    assert processes.count("jobs", f"status = 'queued' AND model = '{FIRST}'") == 6
    assert "lane warm is missing" in api.client.get("/readyz").json()["error"]["message"]
    processes.worker("warm")
    until(lambda: done(FIRST), what="the first model's answers")
    with engine.begin() as connection:
        rows = connection.execute(
            text("SELECT j.model, l.worker FROM jobs j JOIN latency_records l ON l.job_id = j.id")
        ).all()
    assert {(row.model, "other" in row.worker) for row in rows} == {(FIRST, False), (FURTHER, True)}
    for model, ids in asked.items():
        assert {client.responses.retrieve(one).model for one in ids} == {model}


def test_the_lanes_of_a_model_are_all_that_take_its_requests(
    api: Api, client: OpenAI, engine: Engine
) -> None:
    for given, lane, queue in (
        ({"service_tier": "priority"}, "warm", "warm.normal.acme-other-1-5b"),
        ({"service_tier": "flex"}, "cold", "cold.normal.acme-other-1-5b"),
    ):
        response_id = ask(client, FURTHER, **given)
        with engine.begin() as connection:
            job = connection.execute(text("SELECT lane, queue FROM jobs ORDER BY id DESC LIMIT 1")).one()
        assert (job.lane, job.queue) == (lane, queue)
        assert (
            client.responses.retrieve(response_id).service_tier == {"warm": "default", "cold": "flex"}[lane]
        )
    refusal = api.post(kind="chat", prompt="a", model=FURTHER, lane="hot")
    assert (refusal.status_code, refusal.json()["error"]["code"]) == (422, "unknown_lane")
    accepted = api.post(kind="chat", prompt="a", model=FURTHER)
    assert accepted.json()["lane"] == "cold"


def test_readiness_asks_for_a_worker_of_each_model_in_each_lane(api: Api, processes: Processes) -> None:
    processes.worker("hot,warm,cold")
    answer = until(lambda: api.client.get("/readyz").json(), what="an answer")
    until(lambda: api.client.get("/readyz").json()["lanes"]["hot"] == "ready", what="the hot lane")
    answer = api.client.get("/readyz").json()
    assert answer["lanes"] == {"hot": "ready", "warm": "missing", "cold": "missing"}
    assert f"lane cold of {FURTHER} is missing" in answer["error"]["message"]
    processes.worker("warm,cold", model=FURTHER)
    until(lambda: api.client.get("/readyz").json()["ready"], what="all lanes of all models")
