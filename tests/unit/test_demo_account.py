"""The demo's account: what counts as a success, the chat's ratio, and how it is shown."""

import dataclasses
import io
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from trilane.demo import table
from trilane.demo.account import Account, JobRow, Webhooks
from trilane.demo.screen import Screen


def job(number: int, ttft_ms: float | None = 100.0, **changes: Any) -> JobRow:
    row = JobRow(
        *(f"job-{number}", "chat", "hot", 2, "succeeded", 1, 50, 20, 5.0, ttft_ms, 900.0, "An answer.")
    )
    return dataclasses.replace(row, **changes)


def account(**changes: Any) -> Account:
    whole = Account(
        alone=[job(1, 100.0), job(2, 200.0), job(3, 300.0)],
        reports=[job(4, kind="report", lane="cold")],
        tickets=[job(5, kind="ticket", lane="warm", output="您好，\x1b[31m三号\n验潮仪" * 40)],
        beside=[job(6, 400.0), job(7, 500.0), job(8, 9_000.0)],
        errors={},
        webhooks=Webhooks(3, 3, 3),
        urls={"api": "http://127.0.0.1:8080", "flower": "http://127.0.0.1:5555"},
        seconds={"start": 12.3, "run": 70.1},
    )
    return dataclasses.replace(whole, **changes)


def shown(of: Account, width: int) -> str:
    out = io.StringIO()
    table.show(of, Console(file=out, width=width))
    return out.getvalue()


def test_a_run_without_problems_is_ok_and_its_object_has_the_promised_keys() -> None:
    written = account().as_json()
    assert written["ok"] is True
    assert set(written) == {"ok", "jobs", "webhooks", "urls", "seconds"}
    assert [row["id"] for row in written["jobs"]] == [f"job-{number}" for number in range(1, 9)]
    keys = "id kind lane priority status attempt prompt_tokens output_tokens queue_ms ttft_ms total_ms output"
    assert list(written["jobs"][0]) == keys.split()


def test_a_job_that_did_not_succeed_is_a_problem_with_its_reason() -> None:
    failed = job(5, status="failed", kind="ticket", output=None)
    of = account(tickets=[failed], errors={"job-5": "the engine stopped"})
    assert of.problems() == ["ticket job-5 is failed: the engine stopped"]
    assert of.as_json()["ok"] is False


@pytest.mark.parametrize("counts", [(3, 2, 2), (3, 3, 2), (3, 4, 4)])
def test_webhooks_that_are_lost_unverified_or_too_many_are_a_problem(counts: tuple[int, int, int]) -> None:
    assert len(account(webhooks=Webhooks(*counts)).problems()) == 1


def test_the_ratio_is_that_of_the_medians() -> None:
    assert account().chat_ttft_ms() == (200.0, 500.0)
    assert "200 ms alone, 500 ms beside the reports: 2.5x" in shown(account(), 80)
    assert account(beside=[job(6, None)]).chat_ttft_ms() is None


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_width_with_wide_characters_and_hides_control_characters(width: int) -> None:
    text = shown(account(), width)
    assert all(cell_len(line) <= width for line in text.splitlines())
    assert "您好" in text
    assert "\x1b" not in text


def test_a_row_takes_the_times_of_the_last_attempt_and_the_tokens_of_the_result() -> None:
    fields = {"id": "a", "kind": "chat", "lane": "hot", "priority": 2, "status": "succeeded", "attempt": 2}
    attempts = [{"queue_ms": 1.0, "ttft_ms": None}, {"queue_ms": 7.0, "ttft_ms": 9.0, "total_ms": 11.0}]
    result = {"prompt_tokens": 51, "output_tokens": 3, "output": "Yes."}
    row = JobRow.of({**fields, "prompt_tokens": 50, "latency": attempts, "result": result})
    assert row == JobRow("a", "chat", "hot", 2, "succeeded", 2, 51, 3, 7.0, 9.0, 11.0, "Yes.")
    waiting = JobRow.of({**fields, "prompt_tokens": 50, "latency": [], "result": None})
    assert (waiting.prompt_tokens, waiting.ttft_ms, waiting.output) == (50, None, None)


def test_away_from_a_terminal_progress_is_a_plain_line_now_and_then() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=80)) as screen:
        for elapsed_s in (0.0, 1.0, 10.5):
            screen.progress({"hot": ["succeeded", "running", "queued"]}, {"hot": 4, "cold": 2}, elapsed_s)
    assert [line.strip() for line in out.getvalue().splitlines()] == [
        "0 s  hot 1/4, 1 running, 1 waiting · cold 0/2",
        "10 s  hot 1/4, 1 running, 1 waiting · cold 0/2",
    ]
