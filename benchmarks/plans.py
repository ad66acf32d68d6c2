"""The plans that the server really used, told by the server itself while the store's own code runs."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.errors import Diagnostic
from sqlalchemy import Connection, Engine, text

BIG = ("jobs", "results", "latency_records", "webhook_deliveries", "webhook_attempts")
_SCANS = ("Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan")
# A server plans a prepared statement anew five times; then it may settle on a plan for any parameters.
_RUNS = 8

_SETTINGS: Mapping[str, str] = {
    "auto_explain.log_analyze": "on",
    "auto_explain.log_buffers": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
    "auto_explain.log_min_duration": "0",
}

Node = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """One statement as it ran: the indexes it used, the big tables it read whole, and what its scans read.

    `blocks` are of 8 KiB, writes included. A statement that was repeated has its figures summed.
    """

    statement: str
    ms: float
    indexes: frozenset[str]
    seq_scans: frozenset[str]
    rows_read: int
    blocks: int

    def __or__(self, other: "Plan") -> "Plan":
        """The worse of two."""
        return Plan(
            self.statement,
            max(self.ms, other.ms),
            self.indexes | other.indexes,
            self.seq_scans | other.seq_scans,
            max(self.rows_read, other.rows_read),
            max(self.blocks, other.blocks),
        )


def of(engine: Engine, call: Callable[[Connection], Any]) -> list[Plan]:
    """Run `call` again and again on one connection, each time rolled back, and answer its statements' plans.

    They are the worse of a fresh connection's and of one that has settled on its plans. Statements that
    touch no big table are left out.
    """
    with engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
        driver.prepare_threshold = 0
        # The first run finds the caches cold.
        runs = [_run(connection, driver, call) for _ in range(_RUNS)]
        connection.invalidate()
    return [runs[1][query] | plan for query, plan in runs[-1].items()]


def _run(connection: Connection, driver: Any, call: Callable[[Connection], Any]) -> dict[str, Plan]:
    roots: dict[str, list[Node]] = {}

    def keep(notice: Diagnostic) -> None:
        head, found, plan = (notice.message_primary or "").partition("plan:\n")
        if found:
            root = json.loads(plan)
            roots.setdefault(root["Query Text"], []).append(root["Plan"] | {"ms": float(head.split()[1])})

    connection.execute(text("LOAD 'auto_explain'"))
    for name, value in _SETTINGS.items():
        connection.execute(text(f"SET LOCAL {name} = {value}"))
    driver.add_notice_handler(keep)
    try:
        call(connection)
        connection.execute(text("SELECT 1"))  # a plan is told of when its portal closes: at the next one
    finally:
        driver.remove_notice_handler(keep)
        connection.rollback()
    return {query: _plan(found) for query, found in roots.items() if any(map(_big, _nodes(found[0])))}


def _plan(roots: list[Node]) -> Plan:
    nodes = [node for root in roots for node in _nodes(root)]
    scans = [node for node in nodes if node["Node Type"] in _SCANS and _big(node)]
    return Plan(
        statement=f"{nodes[0].get('Operation', 'Select')} {next(filter(_big, nodes))['Relation Name']}",
        ms=sum(root["ms"] for root in roots),
        indexes=frozenset(node["Index Name"] for node in nodes if "Index Name" in node),
        seq_scans=frozenset(node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"),
        rows_read=round(sum(map(_rows, scans))),
        blocks=sum(root[f"Shared {how} Blocks"] for root in roots for how in ("Hit", "Read")),
    )


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _big(node: Node) -> bool:
    return node.get("Relation Name") in BIG


def _rows(node: Node) -> float:
    removed = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck"))
    rows: float = node["Actual Loops"] * (node["Actual Rows"] + removed)
    return rows
