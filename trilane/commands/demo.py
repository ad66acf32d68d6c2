"""`trilane demo`: the example work on a stack of its own, from start to a row per job, then gone."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TextIO

import click
import httpx
from rich.console import Console

from jobs.domain.lanes import LANES
from trilane.demo import table
from trilane.demo.account import Account
from trilane.demo.run import run
from trilane.demo.screen import Screen
from trilane.stack import local


@click.command()
@click.option(
    "--json",
    "json_file",
    type=click.File("w", encoding="utf-8", lazy=False),  # Opened now: not to fail when all is done.
    metavar="PATH",
    help="Also write the jobs, webhooks, addresses and times there as one JSON object.",
)
def demo(json_file: TextIO | None) -> None:
    """Run the example work on a local stack and show every job's times.

    Nothing is left behind. Exits 0 only if every job succeeded and every webhook was verified.
    """
    console = Console(highlight=False)
    try:
        with local.interruptible():
            account = _on_a_stack(console)
    except KeyboardInterrupt:
        console.print("stopped")
        sys.exit(130)
    except httpx.HTTPError as error:
        raise click.ClickException(f"the API did not take the work: {error}") from None
    if json_file:
        json_file.write(json.dumps(account.as_json(), ensure_ascii=False, indent=2) + "\n")
    if problems := account.problems():
        raise click.ClickException("\n  ".join(["the demo did not succeed:", *problems]))
    console.print("Every job succeeded and every webhook was verified.", style="green")


def _on_a_stack(console: Console) -> Account:
    """Start a stack in a directory that does not outlive it, run the work there and show how it went."""
    with tempfile.TemporaryDirectory(prefix="trilane-demo-") as directory:
        screen = Screen(console)
        options = local.Options(
            data_dir=Path(directory),
            engine="llamacpp",
            lanes=[(lane,) for lane in LANES],  # whatever the table of workers says
            webhook_allow=("127.0.0.1/32",),
            embedded=True,
        )
        begun = time.monotonic()
        screen.phase("Starting PostgreSQL, Redis, the API, three workers, control, beat and Flower")
        with local.running(options, screen.detail) as stack:
            screen.detail(f"the API listens at {stack.api}, its docs at {stack.api}/docs")
            screen.detail(f"Flower listens at {stack.flower}, user {stack.flower_user},")
            screen.detail(f"password {stack.flower_password}")
            with screen:
                account = run(stack, screen, start_s=time.monotonic() - begun)
            table.show(account, console)
        return account
