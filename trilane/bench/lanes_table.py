"""The lanes' benchmark's figures as tables."""

from collections.abc import Iterator
from typing import Any

from rich.table import Table

_COLUMNS = ("load", "work", "P50", "P95", "P99", "TTFT P50", "TTFT P99", "held")


def tables(report: dict[str, Any]) -> Iterator[Table]:
    """Latency by kind of work, then what the cards reached, then the shared card."""
    yield _latency(report)
    yield _cards(report)
    if report["shared_card"]:
        yield _shared(report["shared_card"])


def notes(report: dict[str, Any]) -> Iterator[str]:
    """What the tables leave open."""
    tokens = ", ".join(
        f"{kind} {_n(found['mean_prompt_tokens'])} + {_n(found['mean_output_tokens'])}"
        for kind, found in report["rows"][0]["kinds"].items()
    )
    yield f"tokens of a request's prompt and answer, as the engine counted them: {tokens}"
    if reading := report["long_work"]:
        yield f"the measured slowdown of 40% by a long request is read as its batch's, by the {reading}"
    yield f"the single queue's capacity: {report['single_capacity_per_s']:.2f} requests/s"
    for precision, plan in report["plans"].items():
        cards = plan["cards"]
        each = ", ".join(f"{cards.count(lanes)} x {lanes}" for lanes in dict.fromkeys(cards))
        need = ", ".join(f"{lane} {n:.1f}" for lane, n in plan.get("need_cards", {}).items())
        busy = f"; kept busy at the first load: {need}" if need else ""
        yield f"cards, {precision} precision: {each}{busy}"
    ratio = report["ratio"]
    if "hot_alone_p99" in ratio:
        yield f"chat's P99 alone on all cards is {ratio['hot_alone_p99']:.2f} of the single queue's"
    if report["shared_card"]:
        yield report["shared_card"]["definition"]


def failures(report: dict[str, Any]) -> Iterator[str]:
    """What was not answered, and why."""
    for failure in report["failures"]:
        yield "FAILED {requests} of {stage}: {code}: {message}".format(**failure)


def _table(title: str, *columns: str) -> Table:
    table = Table("", *columns, title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _name(row: dict[str, Any]) -> str:
    return "one queue" if row["queue"] == "single" else f"lanes, {row['precision']}"


def _latency(report: dict[str, Any]) -> Table:
    table = _table(f"{', '.join(report['traces'])} on {report['cards']} cards, ms", *_COLUMNS)
    for row in report["rows"]:
        if isinstance(row["load"], str):
            continue  # times of a backlog say how long it was
        name, load = _name(row), str(row["load"])
        for kind, figures in row["kinds"].items():
            table.add_row(name, load, kind, *_cells(figures))
            name = load = ""
        table.add_section()
    if report["hot_alone"]:
        table.add_row("hot alone", "", "chat", *_cells(report["hot_alone"]))
    return table


def _cells(figures: dict[str, Any]) -> list[str]:
    total, ttft = figures["total_ms"], figures["ttft_ms"]
    times_ms = (total["p50"], total["p95"], total["p99"], ttft["p50"], ttft["p99"])
    return [*map(_n, times_ms), f"{figures['attainment']:.0%}"]


def _n(value: float | None, form: str = ",.0f") -> str:
    return "-" if value is None else format(value, form)


def _cards(report: dict[str, Any]) -> Table:
    table = _table("card-seconds", "load", "requests/s", "tokens/s", "makespan, s", "a request")
    for row in report["rows"]:
        table.add_row(
            _name(row),
            str(row["load"]),
            f"{row['throughput_per_s']:.2f}",
            f"{row['output_tokens_per_s']:,.0f}",
            f"{row['makespan_s']:.1f}",
            f"{row['card_seconds_per_request']:.3f}",
        )
    return table


def _shared(shared: dict[str, Any]) -> Table:
    table = _table(
        "hot and cold on one card",
        "hot alone, P99 ms",
        "beside cold",
        "ratio",
        "cold/s",
        "allowed",
        "kept",
    )
    for key, name in (("two_engines", "an engine each"), ("one_engine", "one engine for both")):
        if found := shared.get(key):
            table.add_row(
                name,
                *(_n(found[each]["total_ms"]["p99"]) for each in ("hot_alone", "hot_beside_cold")),
                _n(found["hot_p99_ratio"], ".2f"),
                f"{found['cold_per_s']:.2f}",
                f"{found['cold_allowed_per_s']:.2f}",
                _n(found["cold_kept"], ".0%"),
            )
    return table
