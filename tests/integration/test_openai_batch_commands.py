"""`trilane batch` against a real API."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text

from tests import batch_rig
from tests.api import Api
from tests.batch_rig import jsonl, line
from trilane.cli import main
from trilane.commands import batch as commands

_QUEUED = "SELECT job_id, line FROM batch_items JOIN jobs ON id = job_id WHERE status = 'queued'"


@pytest.fixture
def working(api: Api, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Batches move on, and every job of theirs is answered, but for those of even lines."""
    monkeypatch.setattr(commands, "_LOOK_EVERY_S", 0.05)
    over, worker = threading.Event(), api.worker()

    def work() -> None:
        while not over.wait(0.05):
            with api.engine.begin() as connection:
                rows = connection.execute(text(_QUEUED)).all()
            for row in rows:
                worker.claim(str(row.job_id))
                if row.line % 2:
                    worker.succeed(str(row.job_id), "Two.", hint=False)
                else:
                    worker.fail(str(row.job_id))

    thread = threading.Thread(target=work)
    thread.start()
    with batch_rig.stepping(api):
        yield
    over.set()
    thread.join()


def run(api: Api, *arguments: str) -> Result:
    environment = {"TRILANE_API_URL": api.url, "TRILANE_API_KEY": api.key}
    return CliRunner().invoke(main, ["batch", *arguments], env=environment)


@pytest.mark.usefixtures("working")
def test_a_file_is_run_and_its_answers_are_fetched(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "work.jsonl"
    file.write_bytes(jsonl(line(1)))
    done = run(api, "run", str(file))
    assert done.exit_code == 0, done.output
    assert "completed: 1 done and 0 failed of 1" in done.stdout
    [answer] = (tmp_path / "work.output.jsonl").read_text().splitlines()
    assert json.loads(answer)["custom_id"] == "request-1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["work.jsonl", "work.output.jsonl"]


@pytest.mark.usefixtures("working")
def test_lines_that_failed_lie_beside_and_fail_the_command(api: Api, tmp_path: Path) -> None:
    file, output = tmp_path / "work.jsonl", tmp_path / "answers.jsonl"
    file.write_bytes(jsonl(*(line(n) for n in range(1, 5))))
    done = run(api, "run", str(file), "--output", str(output), "--window", "1h", "--json")
    assert done.exit_code == 1
    # What the steps log in this process comes before.
    assert json.loads(done.stdout.splitlines()[-1])["request_counts"] == {
        "total": 4,
        "completed": 2,
        "failed": 2,
    }
    assert len(output.read_text().splitlines()) == 2
    assert len((tmp_path / "answers.errors.jsonl").read_text().splitlines()) == 2


@pytest.mark.usefixtures("working")
def test_bad_lines_are_told(api: Api, tmp_path: Path) -> None:
    file = tmp_path / "work.jsonl"
    file.write_bytes(jsonl(line(1), line(2, tools=[]), "{"))
    done = run(api, "run", str(file))
    assert done.exit_code == 1
    assert "line 2 (request-2): body.tools: " in done.stderr
    assert "line 3: " in done.stderr
    file.write_bytes(b"{}\n")
    assert "give --endpoint" in run(api, "run", str(file)).stderr


def test_ctrl_c_leaves_the_batch_running_and_says_how_to_go_on(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "work.jsonl"
    file.write_bytes(jsonl(line(1)))
    with monkeypatch.context() as patched:
        patched.setattr("trilane.commands.batch.time.sleep", interrupted)
        left = run(api, "run", str(file))
    assert left.exit_code == 130
    [batch] = (json.loads(one) for one in run(api, "list", "--json").stdout.splitlines())
    assert f"trilane batch wait {batch['id']}" in left.stderr
    assert f"trilane batch cancel {batch['id']}" in left.stderr
    assert batch["status"] == "validating"
    assert batch["id"] in run(api, "list").stdout
    assert "validating" in run(api, "show", batch["id"]).stdout
    assert "cancelling" in run(api, "cancel", batch["id"]).stdout
    with batch_rig.stepping(api):
        waited = run(api, "wait", batch["id"], "--output", str(tmp_path / "out.jsonl"))
    assert waited.exit_code == 1
    assert "cancelled: 0 done" in waited.stdout
