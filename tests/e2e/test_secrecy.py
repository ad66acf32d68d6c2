"""A prompt is seen by its tenant and the model alone: not by Flower, not by Redis, not by any log."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import redis

from tests.waiting import until
from trilane.stack import local

CANARY = "xylophone-4711-canary"


def flower_texts(client: httpx.Client) -> Iterator[str]:
    """Every page and API answer of Flower that tells of tasks, queues, workers or settings."""
    yield from (client.get(path).text for path in ("/", "/broker", "/tasks", "/workers", "/metrics"))
    tasks = client.get("/api/tasks", params={"limit": 1_000})
    workers = client.get("/api/workers", params={"refresh": True})
    yield from (tasks.text, workers.text, client.get("/api/queues/length").text)
    for task in tasks.json():
        yield client.get(f"/task/{task}").text
        yield client.get(f"/api/task/info/{task}").text
    yield from (client.get(f"/worker/{name}").text for name in workers.json())


def redis_dump(url: str) -> str:
    """All that Redis holds, whatever its type."""
    client = redis.Redis.from_url(url)
    try:
        return "".join(f"{key!r}{client.dump(key)!r}" for key in client.scan_iter())
    finally:
        client.close()


def test_a_prompt_is_found_nowhere_but_in_the_database(stack: local.Stack, stack_home: Path) -> None:
    api = httpx.Client(base_url=stack.api, headers={"Authorization": f"Bearer {stack.api_key}"})
    flower = httpx.Client(base_url=stack.flower, auth=(stack.flower_user, stack.flower_password), timeout=20)
    with api, flower:
        refused = api.post("/v1/jobs", json={"kind": CANARY, "prompt": CANARY})
        assert refused.status_code == 422
        body = {"kind": "ticket", "prompt": CANARY, "metadata": {"note": CANARY}, "max_tokens": 8}
        jobs = [api.post("/v1/jobs", json=body).json()["id"] for _ in range(3)]

        def states() -> set[str]:
            return {api.get(f"/v1/jobs/{job}").json()["status"] for job in jobs}

        until(lambda: states() == {"succeeded"}, what="three answers")
        assert CANARY in api.get(f"/v1/jobs/{jobs[0]}").text, "its own tenant sees it"
        until(lambda: jobs[0] in flower.get("/api/tasks").text, what="the job in Flower's list of tasks")
        for text in flower_texts(flower):
            assert CANARY not in text
    assert CANARY not in redis_dump(stack.settings.redis_url)
    logs = sorted((stack_home / "logs").glob("*.log"))
    assert len(logs) >= 9, "every part keeps a log"
    assert not [log.name for log in logs if CANARY in log.read_text(errors="replace")]


def test_flower_shows_every_lane_queue_and_worker_to_who_may_see_them(stack: local.Stack) -> None:
    assert httpx.get(f"{stack.flower}/").status_code == 401
    assert httpx.get(f"{stack.flower}/api/tasks").status_code == 401
    with httpx.Client(
        base_url=stack.flower, auth=(stack.flower_user, stack.flower_password), timeout=20
    ) as flower:
        page = flower.get("/broker").text
        for queue in (
            f"{lane}.{band}" for lane in stack.settings.lanes for band in ("urgent", "normal", "low")
        ):
            assert queue in page

        def names() -> set[str]:
            workers = flower.get("/api/workers", params={"refresh": True}).json()
            return {re.split(r"[-@]", name)[0] for name in workers}

        until(lambda: names() >= {"hot", "warm", "cold", "control"}, what="every worker in Flower")
