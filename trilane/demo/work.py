"""The example work that the project ships, as bodies of `POST /v1/jobs`."""

import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

Body = Mapping[str, Any]

_EVENTS: Mapping[str, Sequence[str]] = {
    "ticket": ("job.succeeded", "job.failed", "job.expired"),
    "report": ("job.started", "job.succeeded", "job.failed", "job.expired"),
}


def examples(name: str) -> list[Body]:
    """The bodies in `trilane/examples/NAME.jsonl`: chat, tickets or reports."""
    text = (files("trilane") / "examples" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def conversation(turn: Body, label: str) -> Body:
    """The chat turn as part of the conversation `label`, which is named at its very beginning.

    The engine keeps the last prompt of each sequence: without a beginning of its own, a turn that is sent
    again would find its prompt computed already.
    """
    system, *rest = turn["messages"]
    opened = {**system, "content": f"{label}. {system['content']}"}
    return {**turn, "messages": [opened, *rest]}


def calling_back(body: Body, url: str, secret: str) -> Body:
    """The body with a webhook for its kind's events: its end, and of a report its start too."""
    return {**body, "webhook": {"url": url, "secret": secret, "events": list(_EVENTS[body["kind"]])}}


def callbacks(bodies: Sequence[Body]) -> int:
    """How many webhooks the jobs send if none is retried: a start where it is asked for, and one end each."""
    events = [body["webhook"]["events"] for body in bodies if "webhook" in body]
    return len(events) + sum("job.started" in each for each in events)
