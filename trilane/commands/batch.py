"""`trilane batch`: carries a file of requests out in the cold lane, and fetches what became of it."""

import json
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from trilane.remote import Remote, connection_options

WINDOWS = ("24h", "6h", "1h")
_LOOK_EVERY_S = 1.0
_ENDED = ("completed", "failed", "expired", "cancelled")

_output_option = click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where the answers go; the lines that failed go beside it.  [default: named after the input]",
)


@click.group()
def batch() -> None:
    """Carry out a file of requests, one JSON object a line as OpenAI's batches have them."""


@batch.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_output_option
@click.option(
    "--window", type=click.Choice(WINDOWS), default="24h", show_default=True, help="When the rest expires."
)
@click.option("--endpoint", help="Such as /v1/responses.  [default: the first line's url]")
@connection_options
def run(
    file: Path,
    output: Path | None,
    window: str,
    endpoint: str | None,
    api: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Upload FILE, run it as a batch, show how far it is, and download the answers.

    Ctrl-C leaves the batch running. Fails unless every line was answered.
    """
    remote = Remote.found(api, key)
    uploaded = remote.upload(file)
    made = remote.create_batch(uploaded["id"], endpoint or _first_url(file), window)
    click.echo(f"batch {made['id']}", err=True)
    _finish(remote, made, output or file.with_suffix(".output.jsonl"), as_json)


@batch.command()
@click.argument("batch_id")
@_output_option
@connection_options
def wait(batch_id: str, output: Path | None, api: str | None, key: str | None, as_json: bool) -> None:
    """Go on with a batch that runs or has ended: wait for its end, then download the answers."""
    remote = Remote.found(api, key)
    _finish(remote, remote.batch(batch_id), output or Path(f"{batch_id}.output.jsonl"), as_json)


@batch.command()
@click.argument("batch_id")
@connection_options
def cancel(batch_id: str, api: str | None, key: str | None, as_json: bool) -> None:
    """Cancel what is left of a batch; what is done is kept."""
    _print(Remote.found(api, key).cancel_batch(batch_id), as_json)


@batch.command()
@click.argument("batch_id")
@connection_options
def show(batch_id: str, api: str | None, key: str | None, as_json: bool) -> None:
    """Show one batch as it stands now."""
    _print(Remote.found(api, key).batch(batch_id), as_json)


@batch.command("list")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many at most.")
@connection_options
def list_(limit: int, api: str | None, key: str | None, as_json: bool) -> None:
    """List the newest batches."""
    found = Remote.found(api, key).batches(limit)["data"]
    if as_json:
        for one in found:
            click.echo(json.dumps(one))
        return
    table = Table("id", "status", "done", "failed", "of", "created", "window", box=None)
    table.columns[0].min_width = 38  # an id is of use only whole
    for one in found:
        counts = one["request_counts"]
        numbers = (str(counts[name]) for name in ("completed", "failed", "total"))
        table.add_row(
            one["id"], one["status"], *numbers, _moment(one["created_at"]), one["completion_window"]
        )
    Console().print(table)


def _first_url(file: Path) -> str:
    """The url of the first line. Raises `click.ClickException` where there is none."""
    with file.open("rb") as lines:
        first = next((line for line in lines if line.strip()), b"")
    try:
        url = json.loads(first)["url"]
    except (ValueError, KeyError, TypeError):
        url = None
    if not isinstance(url, str):
        raise click.ClickException(f"the first line of {file} names no url: give --endpoint")
    return url


def _finish(remote: Remote, made: dict[str, Any], output: Path, as_json: bool) -> None:
    """Wait for the end and fetch the files; ends the process with 1 unless every line was answered."""
    try:
        ended = _end_of(remote, made)
    except KeyboardInterrupt:
        click.echo(
            f"\nThe batch goes on without you.\n  go on:  trilane batch wait {made['id']} --output {output}"
            f"\n  end it: trilane batch cancel {made['id']}",
            err=True,
        )
        sys.exit(130)
    for what, path in (("output", output), ("error", output.with_suffix(f".errors{output.suffix}"))):
        file_id = ended[f"{what}_file_id"]
        if file_id:
            remote.download(file_id, path)
            click.echo(f"{what}: {path}", err=True)
    _print(ended, as_json)
    if ended["status"] != "completed" or ended["request_counts"]["failed"]:
        sys.exit(1)


def _end_of(remote: Remote, made: dict[str, Any]) -> dict[str, Any]:
    """The batch once it has ended, with a bar where a person looks on."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[finish]}"),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        bar = progress.add_task(made["status"], total=None, finish="")
        return _followed(remote, made, lambda **shown: progress.update(bar, **shown))


def _followed(remote: Remote, made: dict[str, Any], show: Callable[..., None]) -> dict[str, Any]:
    now = made
    while now["status"] not in _ENDED:
        counts, finish = now["request_counts"], now["estimated_finish_at"]
        show(
            description=now["status"],
            total=counts["total"] or None,
            completed=counts["completed"] + counts["failed"],
            finish=f"until about {_moment(finish)}" if finish else "",
        )
        time.sleep(_LOOK_EVERY_S)
        now = remote.batch(now["id"])
    return now


def _print(batch: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(batch))
        return
    counts = batch["request_counts"]
    click.echo(
        f"{batch['id']} {batch['status']}: {counts['completed']} done and {counts['failed']} failed"
        f" of {counts['total']}"
    )
    errors = batch["errors"] or {"data": [], "total": 0}
    for error in errors["data"]:
        line = f"line {error['line']}" if error["line"] else "the file"
        named = f" ({error['custom_id']})" if error["custom_id"] else ""
        param = f"{error['param']}: " if error["param"] else ""
        click.echo(f"{line}{named}: {param}{error['message']} ({error['code']})", err=True)
    if errors["total"] > len(errors["data"]):
        click.echo(f"... {errors['total']} in all", err=True)


def _moment(unix_s: int) -> str:
    return f"{datetime.fromtimestamp(unix_s, UTC).astimezone():%Y-%m-%d %H:%M:%S}"
