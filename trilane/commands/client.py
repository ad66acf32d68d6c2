"""The commands that use the HTTP API: submit, status, wait, cancel, tail and lanes."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trilane.remote import Refused, Remote, connection_options

AT_ONCE = 8
_KINDS = ("chat", "ticket", "report")


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of one request: the job, or the error that refused it."""

    line: int
    job: dict[str, Any] | None
    error: dict[str, Any] | None


@click.command()
@click.argument("source", type=click.File("rb"), required=False)
@click.option("--prompt", help="One request with this text, instead of a file.")
@click.option(
    "--kind",
    type=click.Choice(_KINDS),
    default="chat",
    show_default=True,
    help="For requests that name no kind.",
)
@click.option("--wait", "waits", is_flag=True, help="Wait for all jobs and print their answers.")
@connection_options
def submit(
    source: BinaryIO | None,
    prompt: str | None,
    kind: str,
    waits: bool,
    api: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Submit jobs from SOURCE, a file of JSON lines or - for standard input, and print their ids.

    Each line is the body of a request as the API takes it: {"prompt": "...", "kind": "ticket"}. A line that
    is refused is reported with its number, and the others go on.
    """
    if (source is None) == (prompt is None):
        raise click.UsageError("give either a SOURCE of JSON lines or --prompt TEXT")
    remote = Remote.found(api, key)
    lines = enumerate(source, start=1) if source else [(1, json.dumps({"prompt": prompt}).encode())]
    requests = [(number, line) for number, line in lines if line.strip()]

    def send(request: tuple[int, bytes]) -> Sent:
        return _send(remote, kind, *request)

    failed = False
    jobs = []
    for sent in _at_once("submitting", send, requests):
        failed = failed or sent.error is not None
        if sent.job:
            jobs.append(sent.job)
        if not sent.job or not waits:
            _print_sent(sent, as_json)
    if waits and not _print_ends(remote, [job["id"] for job in jobs], None, as_json):
        failed = True
    if failed:
        sys.exit(1)


@click.command()
@click.argument("job_id")
@connection_options
def status(job_id: str, api: str | None, key: str | None, as_json: bool) -> None:
    """Show one job: where it stands, its times and its answer."""
    _print_job(Remote.found(api, key).get(job_id), as_json)


@click.command()
@click.argument("job_ids", metavar="JOB_ID...", nargs=-1, required=True)
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), help="Seconds to wait at most for each."
)
@connection_options
def wait(
    job_ids: tuple[str, ...], timeout_s: float | None, api: str | None, key: str | None, as_json: bool
) -> None:
    """Wait for jobs to end and print their answers; fails unless all succeeded."""
    if not _print_ends(Remote.found(api, key), job_ids, timeout_s, as_json):
        sys.exit(1)


@click.command()
@click.argument("job_id")
@connection_options
def cancel(job_id: str, api: str | None, key: str | None, as_json: bool) -> None:
    """Cancel a job that is queued or running."""
    job = Remote.found(api, key).cancel(job_id)
    click.echo(json.dumps(job) if as_json else f"{job['id']} {job['status']}")


@click.command()
@click.argument("job_id")
@connection_options
def tail(job_id: str, api: str | None, key: str | None, as_json: bool) -> None:
    """Follow a job's text as it is generated, until the job ends; fails unless it succeeded."""
    shown, job = "", {"status": "unknown"}
    for event, data in Remote.found(api, key).follow(job_id):
        if as_json:
            click.echo(json.dumps({"event": event, "data": data}))
        elif event == "text":
            shown += data["text"]
            click.echo(data["text"], nl=False)
        elif event == "snapshot":
            fits = data["text"].startswith(shown)
            click.echo(data["text"][len(shown) :] if fits else f"\n{data['text']}", nl=False)
            shown = data["text"]
        elif event == "reset":
            click.echo("\n[the text is void: another attempt begins]", err=True)
            shown = ""
        if event == "ended":
            job = data
    if not as_json:
        click.echo()
    if job["status"] != "succeeded":
        click.echo(_why(job), err=True)
        sys.exit(1)


@click.command()
@click.option("--watch", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@connection_options
def lanes(watch: bool, api: str | None, key: str | None, as_json: bool) -> None:
    """Show each lane's depth, throughput and latency."""
    remote = Remote.found(api, key)
    if as_json:
        click.echo(json.dumps(remote.lanes()))
        return
    if not watch:
        Console().print(_lanes_table(remote.lanes()))
        return
    with Live(_lanes_table(remote.lanes())) as live:
        try:
            while True:
                time.sleep(2)
                live.update(_lanes_table(remote.lanes()))
        except KeyboardInterrupt:
            return


def _send(remote: Remote, kind: str, number: int, line: bytes) -> Sent:
    try:
        body = json.loads(line.decode())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        return Sent(
            number, None, {"code": "invalid_json", "message": "The line is not one JSON object in UTF-8"}
        )
    try:
        return Sent(number, remote.submit({"kind": kind, **body}), None)
    except Refused as refused:
        return Sent(number, None, refused.error)


def _print_ends(remote: Remote, job_ids: Sequence[str], timeout_s: float | None, as_json: bool) -> bool:
    """Wait for the jobs and print their answers, in order; whether all succeeded."""
    succeeded = True
    for job in _at_once("waiting", lambda job_id: remote.end_of(job_id, timeout_s), job_ids):
        succeeded = succeeded and job["status"] == "succeeded"
        _print_end(job, as_json)
    return succeeded


def _at_once(doing: str, call: Callable[[Any], Any], items: Any) -> Iterator[Any]:
    """`call` for each item, some at once, answered in order, with a bar where a person looks on."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    watched = sys.stderr.isatty() and len(items) > 1
    with (
        Progress(*columns, console=Console(stderr=True), disable=not watched, transient=True) as progress,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        yield from progress.track(pool.map(call, items), total=len(items), description=doing)


def _print_sent(sent: Sent, as_json: bool) -> None:
    if sent.job:
        click.echo(json.dumps(sent.job) if as_json else sent.job["id"])
    elif as_json:
        click.echo(json.dumps({"line": sent.line, "error": sent.error}))
    else:
        click.echo(f"line {sent.line}: {Refused(sent.error or {}).message}", err=True)


def _print_end(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(job))
    else:
        click.echo(f"{job['id']} {job['status']}")
        click.echo(job["result"]["output"] if job["result"] else _why(job))


def _print_job(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(job))
        return
    table = Table(show_header=False, box=None)
    for name in ("id", "status", "kind", "lane", "priority", "model", "attempt", "created_at", "finished_at"):
        table.add_row(name, str(job[name]))
    for attempt in job["latency"]:
        times = (f"{name} {attempt[f'{name}_ms']:.0f} ms" for name in ("queue", "ttft", "total") if
                 attempt[f"{name}_ms"] is not None)  # fmt: skip
        table.add_row(f"attempt {attempt['attempt']}", f"{attempt['outcome']}: {', '.join(times)}")
    Console().print(table)
    if job["result"] or job["error"]:
        click.echo(job["result"]["output"] if job["result"] else _why(job))


def _why(job: dict[str, Any]) -> str:
    error = job.get("error")
    return f"{job['status']}: {error['message']} ({error['code']})" if error else str(job["status"])


def _lanes_table(answer: dict[str, Any]) -> Table:
    title = f"last {answer['window_s'] // 60} minutes, milliseconds end to end"
    table = Table(title=title, box=None, pad_edge=False)
    table.add_column("lane")
    for column in ("waiting", "running", "oldest s", "jobs/s", "P50", "P95", "P99", "objective", "ready"):
        table.add_column(column, justify="right", no_wrap=True)
    for lane in answer["data"]:
        met = {True: "met", False: "missed", None: ""}[lane["met"]]
        table.add_row(
            lane["name"],
            str(lane["waiting"]),
            str(lane["running"]),
            _number(lane["oldest_wait_s"], 1),
            _number(lane["throughput_per_s"], 2),
            *(_number(lane[f"p{quantile}_ms"], 0) for quantile in (50, 95, 99)),
            f"{lane['objective_ms'] or '-'} {met}".rstrip(),
            f"{lane['workers']['ready']}/{sum(lane['workers'].values())}",
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
