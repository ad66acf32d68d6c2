"""Shows that no hot statement reads a big table whole at 1,000,000 jobs: `python -m benchmarks.explain`.

It makes a Postgres of its own with such a month of work, runs every hot call of the store in transactions
that it rolls back, and has the server tell the plans that it used. It prints one JSON object, {statement:
{"ms", "rows_read", "blocks", "indexes", "seq_scans"}}, and exits with 1 where a statement reads a big table
whole, or more rows than its call may. `--markdown docs/explain.md` writes the summary too. About two minutes.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

from sqlalchemy import Engine, text

from benchmarks import hot, million, plans
from benchmarks.hot import Hot
from benchmarks.plans import Plan
from jobs.store.engine import open_engine
from migrations import commands
from trilane.stack import ports
from trilane.stack.postgres import Postgres
from trilane.stack.supervisor import Supervisor

# A server to be thrown away: without what only a crash would miss, and without work beside the measurement.
_SERVER = {
    "shared_buffers": "512MB",
    "maintenance_work_mem": "256MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "fsync": "off",
    "autovacuum": "off",
}

_HEAD = """\
# The hot statements at {total:,} jobs

Written by `python -m benchmarks.explain --markdown docs/explain.md`; do not edit. Each call of the store that
a busy installation makes all the time, with the plans that Postgres {version} used for it: the worse of a
fresh connection's and of one that has settled on plans for its prepared statements. The script fails where a
statement reads a big table whole, or where a call reads more rows than in the column "may read". Milliseconds
are the server's, caches warm, on two shared cores: to compare with each other, not with another machine.

The rows: {counts}. {hung:,} of the deliveries are due to one receiver that hangs.

| call | statement | ms | rows read | may read | indexes |
|---|---|---:|---:|---:|---|
"""


def main() -> int:
    """Measure, print, and say whether all is well."""
    parser = argparse.ArgumentParser(description="The plans of the hot statements at 1,000,000 jobs.")
    parser.add_argument("--markdown", type=Path, help="write the summary to this file")
    path: Path | None = parser.parse_args().markdown
    with _server() as engine:
        _say("filling the tables")
        million.fill(engine)
        with engine.begin() as connection:
            counts = million.counts(connection)
        _say("running the hot statements")
        found = {one: plans.of(engine, one.call) for one in hot.hot(hot.Sample(engine))}
        version = _version(engine)
    faults = [fault for one, of_call in found.items() for fault in _faults(one, of_call)]
    sys.stdout.write(json.dumps(dict(_named(found)), indent=1) + "\n")
    if path:
        path.write_text(_markdown(found, counts, version))
    for fault in faults:
        _say(fault)
    return bool(faults)


@contextmanager
def _server() -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="trilane-explain-") as directory:
        home = Path(directory)
        home.chmod(0o755)  # the server runs as another user and must be able to enter
        postgres, supervisor = Postgres(home, ports.free()), Supervisor(home / "logs", _say)
        try:
            postgres.prepare()
            part = postgres.part()
            options = [word for name, value in _SERVER.items() for word in ("-c", f"{name}={value}")]
            supervisor.start(replace(part, argv=[*part.argv, *options]))
            postgres.create_database()
            engine = open_engine(postgres.url)
            commands.upgrade(engine)
            yield engine
            engine.dispose()
        finally:
            supervisor.stop()


def _faults(one: Hot, of_call: list[Plan]) -> Iterator[str]:
    if not of_call:
        yield f"{one.name}: no statement on a big table was seen"
    for plan in of_call:
        if plan.seq_scans:
            yield f"{one.name}: {plan.statement} reads {', '.join(sorted(plan.seq_scans))} whole"
    rows = sum(plan.rows_read for plan in of_call)
    if rows > one.may_read:
        yield f"{one.name}: reads {rows:,} rows, {one.may_read:,} at most are right"


def _named(found: Mapping[Hot, list[Plan]]) -> Iterator[tuple[str, dict[str, object]]]:
    for one, of_call in found.items():
        for plan in of_call:
            figures = asdict(plan) | {"indexes": sorted(plan.indexes), "seq_scans": sorted(plan.seq_scans)}
            del figures["statement"]
            yield f"{one.name}: {plan.statement}", figures


def _markdown(found: Mapping[Hot, list[Plan]], counts: Mapping[str, int], version: str) -> str:
    total = sum(n for name, n in counts.items() if name.startswith("jobs "))
    rows = ", ".join(f"{n:,} {name}" for name, n in counts.items())
    lines = [_HEAD.format(total=total, version=version, counts=rows, hung=million.HUNG)]
    for one, of_call in found.items():
        for plan in of_call:
            indexes = ", ".join(f"`{name}`" for name in sorted(plan.indexes))
            lines.append(
                f"| {one.name} | {plan.statement} | {plan.ms:.1f} | {plan.rows_read:,} | {one.may_read:,}"
                f" | {indexes} |\n"
            )
    return "".join(lines)


def _version(engine: Engine) -> str:
    with engine.connect() as connection:
        return str(connection.execute(text("SHOW server_version")).scalar_one())


def _say(line: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {line}\n")


if __name__ == "__main__":
    sys.exit(main())
