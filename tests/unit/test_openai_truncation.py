"""What is dropped from a conversation that is too long, and what stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.requests import Message, Role
from jobs.tokenizer import TokenCounter
from producer.openai.truncation import CUT, fitted

COUNTER = TokenCounter()
turns = st.builds(Message, st.sampled_from(Role), st.text("ab ", min_size=1, max_size=400))


def user(text: str) -> Message:
    return Message(Role.USER, text)


def test_what_fits_stays_as_it_is() -> None:
    messages = [user("Hello"), user("again")]
    assert fitted(messages, COUNTER.count(messages), COUNTER) == (messages, 0)


def test_the_oldest_middle_turns_go_first_and_no_more_than_needed() -> None:
    messages = [
        Message(Role.SYSTEM, "Be brief."),
        *(user(f"{number} " + "word " * 20) for number in range(6)),
    ]
    room = COUNTER.count(messages) - 30
    kept, dropped = fitted(messages, room, COUNTER)
    assert kept == [*messages[:2], *messages[4:]]
    assert dropped == COUNTER.count(messages) - COUNTER.count(kept)


def test_a_lone_text_loses_its_middle() -> None:
    text = "begin " + "word " * 1_000 + "end"
    [kept], dropped = fitted([user(text)], 500, COUNTER)
    assert kept.content.startswith("begin") and kept.content.endswith("end")
    assert kept.content.count(CUT) == 1
    assert 450 < COUNTER.count([kept]) <= 500
    assert dropped == COUNTER.count([user(text)]) - COUNTER.count([kept])


def test_what_cannot_fit_is_left_to_be_refused() -> None:
    messages = [Message(Role.SYSTEM, "word " * 1_000), user("Hello")]
    kept, _ = fitted(messages, 100, COUNTER)
    assert kept == messages


@pytest.mark.parametrize("room", [400, 200, 150])
@given(messages=st.lists(turns, min_size=1, max_size=8))
def test_instructions_order_and_ends_stay(room: int, messages: list[Message]) -> None:
    kept, dropped = fitted(messages, room, COUNTER)
    assert dropped == COUNTER.count(messages) - COUNTER.count(kept)
    assert (kept[0].role, kept[-1].role) == (messages[0].role, messages[-1].role)
    instructions = [turn for turn in messages if turn.role is Role.SYSTEM]
    if len(instructions) < len(messages) and messages[: len(instructions)] == instructions:
        assert kept[: len(instructions)] == instructions
