"""The documents name only what there is: links, commands, make targets, settings, metrics, tables."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

import pytest
from pydantic import BaseModel

from jobs.domain import clock
from jobs.domain.jobs import new_id
from jobs.domain.lanes import LANES, LanePolicy
from jobs.secrets import new_signing_secret
from jobs.settings import Settings
from jobs.store import tables
from producer.prepare import MAX_KEY_CHARS
from producer.request import MAX_DEADLINE_S, Request
from tests import command_lines
from tests.exposed_metrics import exposed
from workers.webhook_post import signed_headers

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
OPERATIONS = (ROOT / "docs/operations.md").read_text()
# What the environment carries beside the settings: the file's name, and where the client commands ask.
OTHER_VARIABLES = {"TRILANE_CONFIG", "TRILANE_API_URL", "TRILANE_API_KEY", "TRILANE_EXTRA"}

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def settings() -> Iterator[tuple[str, str]]:
    """The dotted name and the default of every setting."""
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            for inner in type(field.default).model_fields:
                yield f"{name}.{inner}", _shown(getattr(field.default, inner))
        else:
            yield name, _shown(field.get_default(call_default_factory=True))


def _lane_settings(kind: type) -> Iterator[str]:
    """The dotted names of a lane's settings."""
    for name, hint in get_type_hints(kind).items():
        group = next((one for one in (hint, *get_args(hint)) if is_dataclass(one)), None)
        if group is not None:
            yield from (f"{name}.{inner}" for inner in _lane_settings(cast(type, group)))
        elif name not in ("name", "kinds"):
            yield name


def _at(lane: LanePolicy, path: str) -> object:
    """The value at a dotted name; None below a group that the lane has not."""
    return reduce(lambda value, name: value and getattr(value, name), path.split("."), lane)


def families() -> set[str]:
    """The metrics' names, a histogram's without what its samples add."""
    names = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in exposed()}
    return {name for name in names if f"{name}_total" not in names}


def _shown(value: object) -> str:
    if value in ("", None, (), {}):
        return ""
    if isinstance(value, tuple):
        return f"`{list(value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def table(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading of operations.md, without its head."""
    section = re.split(rf"^#+ {re.escape(heading)}$", OPERATIONS, flags=re.M)[1]
    lines = re.findall(r"^\|(.*)\|$", section.split("\n#")[0], re.M)
    return [[cell.strip() for cell in line.split("|")] for line in lines[2:]]


def code(page: Path) -> list[str]:
    """A page's lines of shell, continued ones joined, and its pieces of inline code."""
    text = page.read_text()
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    lines = [
        line
        for language, block in blocks
        if language not in ("python", "json", "toml", "yaml")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return lines + re.findall(r"`([^`\n]+)`", prose)


def words(line: str) -> list[str]:
    """A shell line's words; an apostrophe alone makes no quotation."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return line.split()


def commands(page: Path) -> Iterator[list[str]]:
    """The `trilane ...` commands that a page shows."""
    for line in code(page):
        found = words(line)
        for start, word in enumerate(found):
            if word.rpartition("/")[2] == "trilane" and "=" not in word:
                end = next(
                    (n for n in range(start, len(found)) if re.fullmatch(r"[|&;<>()]+", found[n])), len(found)
                )
                yield ["trilane", *found[start + 1 : end]]


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, target


@each_page
def test_commands_exist(page: Path) -> None:
    for argv in commands(page):
        command_lines.check(argv)


@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {name for line in code(page) for name in re.findall(r"(?:^|[&;] ?)make ([a-z-]+)", line.strip())}
    assert named <= targets


@each_page
def test_files_exist(page: Path) -> None:
    tops = "jobs|producer|workers|trilane|migrations|deploy|docs|tests"
    for path in re.findall(rf"`((?:{tops})/[\w./-]+)`", page.read_text()):
        assert (ROOT / path).exists(), path


@each_page
def test_settings_exist(page: Path) -> None:
    known = {name for name, _ in settings()}
    groups = {name.partition(".")[0] for name in known if "." in name}
    of_lanes = set(_lane_settings(LanePolicy)) | {"engine.speculation"}
    text = page.read_text()
    variables = {f"TRILANE_{name.upper().replace('.', '__')}" for name in known} | OTHER_VARIABLES
    assert set(re.findall(r"\bTRILANE_[A-Z_]*[A-Z]\b", text)) <= variables
    assert set(re.findall(rf"`((?:{'|'.join(groups)})\.[a-z_.]+)`", text)) <= known | of_lanes


@each_page
def test_metrics_exist(page: Path) -> None:
    assert set(re.findall(r"`(trilane_\w+)[`{]", page.read_text())) <= families()


def test_pages_show_commands() -> None:
    shown = {" ".join(argv[:2]) for page in PAGES for argv in commands(page)}
    assert {"trilane demo", "trilane up", "trilane submit", "trilane keys"} <= shown


def test_operations_has_every_setting() -> None:
    assert [(row[0].strip("`"), row[1]) for row in table("Settings")] == list(settings())


def test_operations_has_every_lane_setting() -> None:
    shown = {row[0].strip("`"): row[1 : 1 + len(LANES)] for row in table("Lanes")}
    names = list(_lane_settings(LanePolicy))
    assert shown == {name: [_shown(_at(lane, name)) for lane in LANES.values()] for name in names}


def test_operations_has_every_metric() -> None:
    rows = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table("Metrics")}
    assert set(rows) == families()
    metrics = exposed()
    for name, labels in rows.items():
        assert labels == set(metrics[name if name in metrics else f"{name}_count"]), name


def test_operations_tells_the_limits() -> None:
    limits = {row[0]: row[1] for row in table("Limits")}
    attempts = next(one.le for one in Request.model_fields["max_attempts"].metadata if hasattr(one, "le"))
    assert limits["deadline"] == f"{MAX_DEADLINE_S // 86_400} days"
    assert limits["attempts"] == str(attempts)
    assert limits["idempotency key"] == f"{MAX_KEY_CHARS} characters"


def test_receivers_can_check_signatures_as_shown() -> None:
    (snippet,) = re.findall(r"^```python\n(.*?)^```$", OPERATIONS, re.M | re.S)
    shown: dict[str, Any] = {}
    exec(snippet, shown)
    secret, body = new_signing_secret(), '{"type": "job.succeeded"}'
    headers = signed_headers(new_id(), secret, body, clock.now())
    assert shown["is_genuine"](secret, headers, body.encode())
    assert not shown["is_genuine"](secret, headers, b"{}")
    assert not shown["is_genuine"](new_signing_secret(), headers, body.encode())
    old = signed_headers(new_id(), secret, body, clock.now() - timedelta(minutes=6))
    assert not shown["is_genuine"](secret, old, body.encode())


def test_architecture_has_every_table() -> None:
    section = (ROOT / "docs/architecture.md").read_text().split("## Tables")[1].split("\n##")[0]
    cells = re.findall(r"^\| (`.*?) \|", section, re.M)
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set(tables.metadata.tables)
