"""`trilane demo` as a newcomer runs it: real answers, verified webhooks, its object, nothing left."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

TIME_LIMIT_S = 540.0


def test_the_demo_answers_everything_and_leaves_nothing_behind(tmp_path: Path) -> None:
    scratch, written = tmp_path / "scratch", tmp_path / "demo.json"
    scratch.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith("TRILANE_")}
    # The demo keeps away from servers that the settings name.
    env |= {"TMPDIR": str(scratch), "TRILANE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    done = subprocess.run(
        [sys.executable, "-m", "trilane", "demo", "--json", str(written)],
        env=env,
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(scratch.iterdir()) == []

    account: dict[str, Any] = json.loads(written.read_text())
    assert set(account) == {"ok", "jobs", "webhooks", "urls", "seconds"}
    assert account["ok"] is True
    assert account["webhooks"] == {"expected": 10, "delivered": 10, "verified": 10}
    assert set(account["urls"]) == {"api", "flower"}
    assert set(account["seconds"]) == {"start", "run"}

    jobs = account["jobs"]
    by_kind = {kind: [job for job in jobs if job["kind"] == kind] for kind in ("chat", "ticket", "report")}
    assert {kind: len(those) for kind, those in by_kind.items()} == {"chat": 10, "ticket": 6, "report": 2}
    assert {(job["kind"], job["lane"]) for job in jobs} == {
        ("chat", "hot"),
        ("ticket", "warm"),
        ("report", "cold"),
    }
    assert {job["status"] for job in jobs} == {"succeeded"}
    assert all(job["output"].strip() and 0 < job["ttft_ms"] <= job["total_ms"] for job in jobs)
    assert max(job["prompt_tokens"] for job in jobs) > 3_000

    alone, beside = by_kind["chat"][:5], by_kind["chat"][5:]
    ratio = median(job["ttft_ms"] for job in beside) / median(job["ttft_ms"] for job in alone)
    shown = re.search(r"beside the reports: ([0-9.]+)x", done.stdout)
    assert shown is not None
    assert float(shown[1]) == round(ratio, 1)
    print(f"chat TTFT beside the reports over alone: {ratio:.2f}")  # noqa: T201 - the figure is the point
    assert ratio <= 4.0
    # The text that follows is what people read: every job's row, and where the stack listened.
    assert done.stdout.count("succeeded") >= len(jobs)
    assert all(url in done.stdout for url in account["urls"].values())
