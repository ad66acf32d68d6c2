"""`trilane precision-check`: whether a lane's precision answers as well as another lane's."""

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from jobs.domain.agreement import SEGMENT_TOKENS
from trilane.precision.check import PrecisionCheck, Score, report
from trilane.remote import Remote, connection_options


@click.command("precision-check")
@click.option("--lane", required=True, help="The lane whose precision is checked.")
@click.option("--reference", required=True, help="The lane whose answers count as right.")
@click.option(
    "--file",
    "source",
    required=True,
    type=click.File("rb"),
    help='Prompts, one JSON object a line: {"prompt": "..."} or any body of a request.',
)
@click.option(
    "--score",
    "scoring",
    metavar="WHERE:NAME",
    help="A function of (request, output) whose number is better when higher: module:name or file.py:name.",
)
@click.option(
    "--max-drop",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="How much worse the lane may be: of the mean score, or without one of the tokens that agree.",
)
@connection_options
def precision_check(
    lane: str,
    reference: str,
    source: BinaryIO,
    scoring: str | None,
    max_drop: float,
    api: str | None,
    key: str | None,
    as_json: bool,
) -> None:
    """Run the same prompts through two lanes, at temperature 0, and compare their answers.

    Exits with 1 where the lane is worse than allowed, or where a prompt was not answered.
    """
    if lane == reference:
        raise click.UsageError("--lane and --reference name the same lane: name two")
    score = _score(scoring) if scoring else None
    requests = [_request(number, line) for number, line in enumerate(source, start=1) if line.strip()]
    if not requests:
        raise click.UsageError(f"{source.name} holds no prompts")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    watched = sys.stderr.isatty()
    check = PrecisionCheck(Remote.found(api, key), lane, reference)
    with Progress(*columns, console=Console(stderr=True), disable=not watched, transient=True) as progress:
        checked = list(progress.track(check.run(requests), total=len(requests), description="comparing"))
    found = report(checked, score, max_drop)
    if as_json:
        click.echo(json.dumps(found))
    else:
        _print(found, lane, reference)
    sys.exit(0 if found["ok"] else 1)


def _request(number: int, line: bytes) -> dict[str, Any]:
    try:
        body = json.loads(line.decode())
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not {"prompt", "messages"} & set(body):
        raise click.UsageError(f"line {number}: not a JSON object with prompt or messages")
    return body


def _score(where: str) -> Score:
    module_name, _, name = where.rpartition(":")
    try:
        if module_name.endswith(".py"):
            spec = importlib.util.spec_from_file_location("trilane_score", Path(module_name).resolve())
            if spec is None or spec.loader is None:
                raise ImportError(f"{module_name} cannot be read")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(module_name)
        found: Score = getattr(module, name)
    except (ImportError, OSError, AttributeError, ValueError) as error:
        raise click.UsageError(f"--score {where}: {error}: give module:name or file.py:name") from None
    return found


def _print(found: Mapping[str, Any], lane: str, reference: str) -> None:
    console = Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, side in ((reference, "reference"), (lane, "candidate")):
        table.add_row(name, ", ".join(found["engines"][side]))
    table.add_row("exact match", f"{found['exact_match']:.1%} of {found['prompts']}")
    table.add_row("tokens that agree", f"{found['agreement']:.1%}")
    for number, share in enumerate(found["drift"]):
        first = number * SEGMENT_TOKENS
        table.add_row(f"  {first} to {first + SEGMENT_TOKENS - 1}", f"{share:.1%}")
    gap = found["logprob_gap"]
    table.add_row(
        "log-probability gap", "not told by the engines" if gap is None else f"{gap:+.4f} nats a token"
    )
    if found["score"]:
        table.add_row("score", "{reference:.4f} and {candidate:.4f}".format(**found["score"]))
    verdict = "within" if found["drop"] <= found["max_drop"] else "MORE THAN"
    table.add_row("drop", f"{found['drop']:.1%}, {verdict} the allowed {found['max_drop']:.1%}")
    console.print(table, highlight=False)
    for failure in found["failed"]:
        console.print(f"not answered: {failure}", highlight=False)
    if found["engines"]["reference"] == found["engines"]["candidate"]:
        console.print("Both lanes ran the same precision: this says nothing about another one.")
