"""The commands that use the API, against a real one; and `trilane keys` against a real database."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, text

from jobs.live import LiveEvent
from jobs.settings import Settings
from jobs.store import tenants
from producer.api.hub import Hub, Listener
from tests.api import Api, Worker
from tests.conftest import SECRET_KEY
from tests.waiting import until
from trilane import remote
from trilane.cli import main
from trilane.stack import local


def run(api: Api, *arguments: str, stdin: str | bytes | None = None) -> Result:
    environment = {"TRILANE_API_URL": api.url, "TRILANE_API_KEY": api.key}
    return CliRunner().invoke(main, list(arguments), input=stdin, env=environment)


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture
def worker(api: Api) -> Iterator[Worker]:
    """A worker that ends every queued job with the same answer, until the test is over."""
    made, over = api.worker(), threading.Event()

    def work() -> None:
        while not over.wait(0.05):
            for job_id in queued(api):
                made.claim(job_id)
                made.tell(job_id, "1-1", LiveEvent.TEXT, text="Order")
                made.tell(job_id, "1-2", LiveEvent.TEXT, text="ly.")
                made.succeed(job_id, "Orderly.")

    thread = threading.Thread(target=work)
    thread.start()
    yield made
    over.set()
    thread.join()


def queued(api: Api) -> list[str]:
    with api.engine.begin() as connection:
        found = connection.execute(text("SELECT id FROM jobs WHERE status = 'queued' ORDER BY id"))
        return [str(row.id) for row in found]


def test_submit_takes_a_file_and_reports_bad_lines_by_number(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "work.jsonl"
    file.write_bytes(
        b'{"prompt": "one"}\n\n{"kind": "report", "prompt": "two"}\nnonsense\n'
        b'{"prompt": "three", "temperature": NaN}\n{"prompt": "\xff"}\n[1]\n'
        b'{"kind": "ticket", "prompt": "four"}\n'
    )
    result = run(api, "submit", str(file), "--json")
    assert result.exit_code == 1
    answers = lines(result)
    assert [answer.get("kind") or answer["line"] for answer in answers] == [
        "chat",
        "report",
        4,
        5,
        6,
        7,
        "ticket",
    ]
    assert {answer["error"]["code"] for answer in answers if answer["error"]} == {"invalid_json"}
    assert api.rows() == 3
    plain = run(api, "submit", str(file))
    assert len(plain.stdout.split()) == 3
    assert "line 4: " in plain.stderr


def test_submit_takes_standard_input_or_one_prompt(api: Api) -> None:
    assert (
        run(api, "submit", "-", "--kind", "ticket", stdin='{"prompt": "x"}\n{"prompt": "y"}').exit_code == 0
    )
    assert run(api, "submit", "--prompt", "z").exit_code == 0
    listed = api.client.get("/v1/jobs").json()["data"]
    assert [job["kind"] for job in listed] == ["chat", "ticket", "ticket"]
    for wrong in (("submit",), ("submit", "-", "--prompt", "x")):
        assert run(api, *wrong, stdin="").exit_code == 2


def test_submit_waits_for_all_answers(api: Api, worker: Worker) -> None:
    requests = "\n".join(json.dumps({"prompt": f"number {n}"}) for n in range(20))
    result = run(api, "submit", "-", "--wait", "--json", stdin=requests)
    assert result.exit_code == 0, result.output
    assert [job["result"]["output"] for job in lines(result)] == ["Orderly."] * 20


def test_status_wait_and_tail_show_the_answer(api: Api, worker: Worker) -> None:
    job_id = api.accept()
    for command in ("wait", "tail", "status"):
        plain = run(api, command, job_id)
        assert plain.exit_code == 0, plain.output
        assert "Orderly." in plain.stdout
    assert lines(run(api, "status", job_id, "--json"))[0]["id"] == job_id
    assert lines(run(api, "wait", job_id, "--json"))[0]["status"] == "succeeded"
    assert [line["event"] for line in lines(run(api, "tail", job_id, "--json"))] == [
        "status",
        "snapshot",
        "ended",
    ]


def test_tail_goes_on_behind_a_lost_connection(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, job_id = api.worker(), api.accept()
    worker.claim(job_id)
    worker.tell(job_id, "1-1", LiveEvent.TEXT, text="Order")
    opened: list[str | None] = []
    reading = Hub.backlog

    async def backlog(hub: Hub, which: str, after: str | None, listener: Listener) -> Any:
        opened.append(after)
        if len(opened) == 2:
            hub.close()  # Every stream ends; the next one is served again.
            hub._closed = False
        return await reading(hub, which, after, listener)

    monkeypatch.setattr(Hub, "backlog", backlog)
    with ThreadPoolExecutor(1) as pool:
        result: Future[Result] = pool.submit(run, api, "tail", job_id)
        until(lambda: opened, what="the first stream")
        api.client.get(f"/v1/jobs/{job_id}/events", headers={"Last-Event-ID": "1-1"})
        until(lambda: "1-1" in opened[2:], what="the stream that resumes")
        worker.tell(job_id, "1-2", LiveEvent.TEXT, text="ly.")
        worker.succeed(job_id, "Orderly.")
        assert result.result().stdout == "Orderly.\n"


def test_wait_gives_up_after_its_timeout_and_fails_for_failed_jobs(api: Api) -> None:
    job_id = api.accept()
    result = run(api, "wait", job_id, "--timeout", "0.2")
    assert result.exit_code == 1
    assert "has not ended within 0.2 s" in result.stderr
    cancelled = run(api, "cancel", job_id)
    assert (cancelled.exit_code, cancelled.stdout) == (0, f"{job_id} cancelled\n")
    assert run(api, "wait", job_id).exit_code == 1
    assert run(api, "tail", job_id).exit_code == 1
    unknown = run(api, "status", "no-id")
    assert (unknown.exit_code, "job_not_found" in unknown.stderr) == (1, True)


def test_lanes_are_shown_as_a_table_or_json(api: Api) -> None:
    api.accept()
    shown = run(api, "lanes").stdout
    assert all(lane in shown for lane in ("hot", "warm", "cold"))
    [answer] = lines(run(api, "lanes", "--json"))
    assert answer["data"][0]["waiting"] == 1


def test_an_api_that_is_away_is_told_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(remote, "_TRIES", 1)
    away = CliRunner().invoke(main, ["lanes", "--api", "http://127.0.0.1:1", "--key", "trl_x"])
    assert (away.exit_code, away.stderr.count("\n")) == (1, 1)
    assert "does not answer" in away.stderr
    monkeypatch.chdir(tmp_path)
    none = CliRunner().invoke(main, ["lanes"], env={"TRILANE_API_URL": None, "TRILANE_API_KEY": None})
    assert none.exit_code == 1
    assert "trilane up" in none.stderr


def test_the_running_stack_is_the_default(api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert local.Options.data_dir / local.DESCRIPTION == remote.STACK_FILE
    monkeypatch.chdir(tmp_path)
    remote.STACK_FILE.parent.mkdir()
    remote.STACK_FILE.write_text(json.dumps({"api": api.url, "api_key": api.key}))
    result = CliRunner().invoke(
        main, ["submit", "--prompt", "x"], env={"TRILANE_API_URL": None, "TRILANE_API_KEY": None}
    )
    assert result.exit_code == 0, result.output
    assert api.rows() == 1


def test_a_key_is_made_shown_once_used_and_revoked(api: Api, settings: Settings, engine: Engine) -> None:
    environment = {"TRILANE_DATABASE_URL": settings.database_url, "TRILANE_SECRET_KEY": SECRET_KEY}

    def keys(*arguments: str) -> Result:
        result = CliRunner().invoke(main, ["keys", *arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result

    [made] = lines(keys("create", "--tenant", "new", "--json"))
    assert made["signing_secret"].startswith("whsec_")
    [second] = lines(keys("create", "--tenant", "new", "--json"))
    assert "signing_secret" not in second
    assert "trl_" in keys("create", "--tenant", "third").stdout
    headers = {"Authorization": f"Bearer {made['api_key']}"}
    assert httpx.get(f"{api.url}/v1/jobs", headers=headers).status_code == 200
    listed = keys("list")
    assert made["api_key"] not in listed.stdout
    [row] = [row for row in lines(keys("list", "--json")) if made["api_key"].startswith(row["key"][:-3])]
    keys("revoke", row["id"])
    with engine.begin() as connection:
        assert tenants.of_key(connection, made["api_key"]) is None
    again = CliRunner().invoke(main, ["keys", "revoke", row["id"]], env=environment)
    assert (again.exit_code, "no live key" in again.stderr) == (1, True)
