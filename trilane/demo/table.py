"""The closing account of the demo as people read it: a table of the jobs and the lines below it."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from trilane.demo.account import Account, JobRow

_RATIO_WANTED = 4.0
_STYLE = {"succeeded": "green", "failed": "red", "cancelled": "red", "expired": "red"}


def show(account: Account, console: Console) -> None:
    """Print the account. Lines are cut to the console's width; wide characters count as two columns."""
    console.print("", _table(account), "", sep="\n")
    for name, line in _lines(account):
        console.print(Text.assemble((f"{name:<10}", "bold"), line))


def _table(account: Account) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    for name in ("kind", "lane"):
        table.add_column(name, no_wrap=True)
    table.add_column("prio", justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for name in ("queue\nms", "TTFT\nms", "total\nms", "tokens\nin+out"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("answer", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in account.jobs:
        table.add_row(*_cells(job), end_section=job is account.alone[-1])
    return table


def _cells(job: JobRow) -> Iterator[Text]:
    yield Text(job.kind)
    yield Text(job.lane)
    yield Text(str(job.priority))
    yield Text(job.status, style=_STYLE.get(job.status, ""))
    for time_ms in (job.queue_ms, job.ttft_ms, job.total_ms):
        yield Text("-" if time_ms is None else f"{time_ms:.0f}")
    yield Text(f"{job.prompt_tokens}+{job.output_tokens or 0}")
    words = " ".join((job.output or "").split())
    yield Text("".join(letter for letter in words if letter.isprintable()))


def _lines(account: Account) -> Iterator[tuple[str, str]]:
    webhooks, seconds = account.webhooks, account.seconds
    yield (
        "Webhooks",
        f"{webhooks.delivered} delivered and {webhooks.verified} verified, of {webhooks.expected} expected",
    )
    yield "API", f"listened at {account.urls['api']}"
    yield "Flower", f"listened at {account.urls['flower']}"
    yield "Time", f"{seconds['start']:.1f} s to start, {seconds['run']:.1f} s to run"
    if (ttft_ms := account.chat_ttft_ms()) is not None:
        alone_ms, beside_ms = ttft_ms
        ratio = beside_ms / alone_ms
        yield "Chat TTFT", f"{alone_ms:.0f} ms alone, {beside_ms:.0f} ms beside the reports: {ratio:.1f}x"
        verdict = "kept" if ratio <= _RATIO_WANTED else "not kept"
        yield "", f"(medians of {len(account.alone)} turns; at most {_RATIO_WANTED:g}x is wanted: {verdict})"
