"""`trilane bench`: measures the pipeline, an engine inside it, and the lanes."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from jobs import logging
from trilane.stack import local

_json_option = click.option(
    "--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write everything measured there."
)


@click.group()
def bench() -> None:
    """Measure on this machine; figures compare only within one run."""


@bench.command()
@click.option(
    "--jobs", type=click.IntRange(100), default=5_000, show_default=True, help="Jobs in each backlog."
)
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, help="Rounds; medians count."
)
@_json_option
def pipeline(jobs: int, repeats: int, path: Path | None) -> None:
    """Measure the pipeline at zero compute, beside plain Celery with one INSERT a job.

    Exits with 1 if a job was lost or ran twice; a missed target is only told.
    """
    from trilane.bench import pipeline as measuring

    with local.interruptible():
        logging.configure("WARNING")
        report = measuring.measure(jobs, repeats, _say)
    _write(path, report)
    _print(_pipeline_table(report), report["targets"])
    sys.exit(bool(report["lost"] or report["duplicates"]))


@bench.command()
@click.option("--engine", default="llamacpp", show_default=True, help="The engine.")
@click.option("--pairs", type=click.IntRange(1), default=5, show_default=True, help="Pairs of measurements.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=4, show_default=True, help="Sequences in the engine."
)
@click.option(
    "--tokens", type=click.IntRange(1), default=48, show_default=True, help="Output tokens of a request."
)
@click.option(
    "--model-path",
    type=click.Path(exists=True, path_type=Path),
    help="The model's file or folder.  [default: SmolLM2]",
)
@_json_option
def engine(
    engine: str, pairs: int, concurrency: int, tokens: int, model_path: Path | None, path: Path | None
) -> None:
    """Measure an engine's tokens/s through all of Trilane over those of the engine alone.

    Both use one engine thread, so that a machine of two cores leaves one to the pipeline.
    """
    from trilane.bench import engine as measuring

    with local.interruptible():
        logging.configure("WARNING")
        report = measuring.measure(engine, model_path, pairs, concurrency, tokens, _say)
    _write(path, report)
    table = Table(
        "pair", "Trilane, tokens/s", "bare, tokens/s", "ratio", title=f"{engine}, {concurrency} at once"
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for number, pair in enumerate(report["pairs"], 1):
        table.add_row(
            str(number), *(f"{pair[name]:.1f}" for name in ("trilane", "bare")), f"{pair['ratio']:.3f}"
        )
    ratio = report["ratio"]
    table.add_row("median", "", "", f"{ratio['median']:.3f}")
    table.add_row("spread", "", "", f"{ratio['min']:.3f} - {ratio['max']:.3f}")
    _print(table, report["targets"])


@bench.command()
@click.option(
    "--engine",
    type=click.Choice(["sim", "llamacpp", "vllm"]),
    default="sim",
    show_default=True,
    help="The engine: simulated in virtual time, or real ones on this machine.",
)
@click.option(
    "--trace",
    "traces",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A request trace with the columns TIMESTAMP, ContextTokens, GeneratedTokens. Several are laid over"
    " each other.  [default: a made-up mix]",
)
@click.option(
    "--requests", type=click.IntRange(2), help="How many of the load's.  [default: 1,000; real engines: 12]"
)
@click.option(
    "--cards", type=click.IntRange(1), help="Cards.  [default: 8; real engines: 2, vLLM on GPUs: 1]"
)
@click.option(
    "--load",
    "loads",
    multiple=True,
    type=click.FloatRange(0, 2, min_open=True),
    default=(0.8,),
    show_default=True,
    help="Part of the single queue's measured capacity. The targets look at the first.",
)
@click.option(
    "--sequences",
    type=click.IntRange(1),
    default=8,
    show_default=True,
    help="Sequences in each of the single queue's engines.",
)
@click.option(
    "--shrink",
    type=click.IntRange(1),
    help="Divide all lengths by this.  [default: 1; real engines: 32]",
)
@click.option(
    "--long-work",
    type=click.Choice(["step", "request"]),
    default="step",
    show_default=True,
    help="What a long request was measured to lengthen by 40%: each step of its batch, or the requests beside"
    " it all in all. Simulated engines only.",
)
@_json_option
def lanes(
    engine: str,
    traces: tuple[Path, ...],
    requests: int | None,
    cards: int | None,
    loads: tuple[float, ...],
    sequences: int,
    shrink: int | None,
    long_work: str,
    path: Path | None,
) -> None:
    """Measure one mixed load through one queue, and through three lanes on the same cards.

    Exits with 1 if an engine failed to answer a request; a missed target is only told.
    """
    from trilane.bench import lanes as measuring
    from trilane.bench import lanes_engines, lanes_table
    from workers.engines.sim_curves import LongWork
    from workers.engines.vllm import EngineStartError

    real = engine != measuring.SIM
    usual = (12, lanes_engines.real_cards(engine), 32) if real else (1_000, 8, 1)
    with local.interruptible(), _progress() as watch:
        logging.configure("WARNING")
        try:
            report = measuring.measure(
                engine,
                traces,
                requests=requests or usual[0],
                cards=cards or usual[1],
                loads=loads,
                sequences=sequences,
                shrink=shrink or usual[2],
                long_work=LongWork(long_work),
                watch=watch,
            )
        except (OSError, ValueError, EngineStartError) as error:  # no trace; what the engine refuses
            raise click.ClickException(str(error)) from None
    _write(path, report)
    *tables, last = lanes_table.tables(report)
    console = Console()
    for table in tables:
        console.print(table)
    for note in lanes_table.notes(report):
        console.print(note, highlight=False)
    _print(last, report["targets"])
    for failure in lanes_table.failures(report):
        console.print(failure, highlight=False, markup=False)
    sys.exit(bool(report["failures"]))


@contextmanager
def _progress() -> Iterator[Callable[[str, int], Callable[[], None]]]:
    """One stage after another on standard error, a bar on a terminal, elsewhere a line each.

    See `trilane.bench.lanes_run.Watch`.
    """
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("")

        def stage(name: str, total: int) -> Callable[[], None]:
            progress.reset(bar, description=name, total=total or None)
            if not progress.console.is_terminal:
                _say(f"{name} ({total})" if total else name)
            return partial(progress.advance, bar)

        yield stage


def _pipeline_table(report: dict[str, Any]) -> Table:
    plain, ratio = report["plain_celery"], report["ratio"]
    table = Table(
        "",
        "Trilane",
        "plain Celery",
        "ratio",
        title=f"{report['jobs']:,} jobs, median of {report['repeats']}",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("submitted one by one, /s", _n(report["ingest_single_per_s"]), _n(plain["publish_per_s"]))
    table.add_row("submitted in bulk, /s", _n(report["ingest_bulk_per_s"]))
    drain = _n(plain["drain_per_s"])
    table.add_row("drained, one id a message, /s", _n(report["drain_per_s"]), drain, f"{ratio['drain']:.2f}")
    bulk = f"{ratio['drain_bulk']:.2f}"
    table.add_row("drained in bulk, /s", _n(report["drain_bulk_per_s"]), drain, bulk)
    for name in ("p50", "p95", "p99"):
        ours, theirs = report["overhead_ms"][name], plain["overhead_ms"][name]
        table.add_row(f"added latency {name.upper()}, ms", f"{ours:.1f}", f"{theirs:.1f}")
    table.add_row("worker's memory, MiB", _n(report["worker_rss_mb"]))
    table.add_row(
        "results / lost / repeated", f"{report['results']:,} / {report['lost']} / {report['duplicates']}"
    )
    return table


def _n(value: float) -> str:
    return f"{value:,.0f}"


def _print(table: Table, targets: dict[str, bool]) -> None:
    console = Console()
    console.print(table)
    for target, met in targets.items():
        console.print(f"{'met   ' if met else 'MISSED'} {target}", highlight=False)


def _write(path: Path | None, report: dict[str, Any]) -> None:
    if path:
        path.write_text(json.dumps(report, indent=2) + "\n")


def _say(line: str) -> None:
    click.echo(line, err=True)
