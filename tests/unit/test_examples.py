"""The example work that the project ships: as much and as varied as the demo promises."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from jobs import model_files
from jobs.domain.lanes import LANES, Kind, route
from jobs.domain.requests import Message, Role
from jobs.tokenizer import TokenCounter
from producer import request
from trilane.demo import work


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter(model_files.smollm2_path())


def messages_of(body: Mapping[str, Any]) -> list[Message]:
    turns = body.get("messages") or [{"role": "user", "content": body["prompt"]}]
    return [Message(Role(turn["role"]), turn["content"]) for turn in turns]


def is_chinese(body: Mapping[str, Any]) -> bool:
    text = "".join(message.content for message in messages_of(body))
    return sum("\u4e00" <= letter <= "\u9fff" for letter in text) > len(text) / 3


@pytest.mark.parametrize(
    ("name", "kind", "lane", "at_least"),
    [("chat", Kind.CHAT, "hot", 4), ("tickets", Kind.TICKET, "warm", 6), ("reports", Kind.REPORT, "cold", 2)],
)
def test_each_class_has_valid_requests_of_its_lane_in_english_and_chinese(
    name: str, kind: Kind, lane: str, at_least: int, counter: TokenCounter
) -> None:
    bodies = work.examples(name)
    assert len(bodies) >= at_least
    assert {is_chinese(body) for body in bodies} == {True, False}
    assert len({json.dumps(body) for body in bodies}) == len(bodies)
    for body in bodies:
        parsed = request.parse(json.dumps(body).encode())
        assert parsed.kind is kind
        assert route(LANES, kind, counter.count(messages_of(body)), parsed.max_tokens or 0) == lane


def test_one_report_is_long_and_the_other_longer_than_600_tokens(counter: TokenCounter) -> None:
    tokens = sorted(counter.count(messages_of(body)) for body in work.examples("reports"))
    assert tokens[-1] > 3_000
    assert tokens[0] > 600


def test_a_turn_that_is_sent_again_shares_hardly_a_beginning_with_the_first() -> None:
    turn = work.examples("chat")[0]
    first, again = (
        messages_of(work.conversation(turn, label))[0].content
        for label in ("Conversation 1", "Conversation 2")
    )
    assert first[:14] != again[:14]
    assert first.endswith(turn["messages"][0]["content"])


def test_a_ticket_calls_back_once_and_a_report_twice() -> None:
    bodies = [*work.examples("tickets")[:2], work.examples("reports")[0]]
    calling = [work.calling_back(body, "http://127.0.0.1:1/", "whsec_AAAA") for body in bodies]
    assert work.callbacks(calling) == 2 * 1 + 2
    assert work.callbacks(bodies) == 0
