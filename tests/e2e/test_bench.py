"""The pipeline's benchmark, small: it measures everything it promises, and no job is lost or runs twice."""

import json
import math
from pathlib import Path

from click.testing import CliRunner

from trilane.cli import main

N = 200


def test_the_pipeline_is_measured_and_every_job_is_answered_once(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.json"
    arguments = ["bench", "pipeline", "--jobs", str(N), "--repeats", "1", "--json", str(path)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report = json.loads(path.read_text())
    assert (report["results"], report["lost"], report["duplicates"]) == (N, 0, 0)
    plain = report["plain_celery"]
    figures = [
        *(report[f"{what}_per_s"] for what in ("ingest_single", "ingest_bulk", "drain", "drain_bulk")),
        *(plain[f"{what}_per_s"] for what in ("publish", "drain")),
        *(side["overhead_ms"][name] for side in (report, plain) for name in ("p50", "p95", "p99")),
        *(report["ratio"][name] for name in ("drain", "drain_bulk")),
        report["worker_rss_mb"],
    ]
    assert all(math.isfinite(figure) and figure > 0 for figure in figures), figures
    assert all(f" {target}" in done.output for target in report["targets"])
