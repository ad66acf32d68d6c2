"""A long document's windows: they cover the text, share what they may, and keep to their size."""

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.domain import tokens, windows
from jobs.domain.policies import WindowPolicy
from jobs.domain.requests import Message, Role

ENGLISH = (
    "It works. Dr. J. Smith paid 3.5 dollars, e.g. in cash (see Fig. 2). Really?! “Yes.” He left... and came."
)
CHINESE = "今天天气很好。你好吗?我很好!他说:“走吧。”然后离开了……再见。"


def lengths(texts: Sequence[str]) -> list[int]:
    """One token a character, so that costs add up exactly."""
    return [len(text) for text in texts]


def test_english_sentences_end_where_they_end() -> None:
    assert [sentence.strip() for sentence in windows.sentences(ENGLISH)] == [
        "It works.",
        "Dr. J. Smith paid 3.5 dollars, e.g. in cash (see Fig. 2).",
        "Really?!",
        "“Yes.”",
        "He left... and came.",
    ]


def test_chinese_sentences_end_without_a_space() -> None:
    assert windows.sentences("今天天气很好。你好吗？我很好！他说：“走吧。”然后离开了。") == [
        "今天天气很好。",
        "你好吗？",
        "我很好！",
        "他说：“走吧。”",
        "然后离开了。",
    ]


def test_an_empty_line_ends_a_sentence_without_a_full_stop() -> None:
    assert windows.sentences("A heading\n\nThe text. More") == ["A heading\n\n", "The text. ", "More"]


@pytest.mark.parametrize(
    "text", ["." * 200_000, "\n" * 200_000, ".) " * 60_000, "a.b" * 60_000, "” " * 90_000]
)
def test_no_text_is_slow_to_split(text: str) -> None:
    started = time.process_time()
    assert "".join(windows.sentences(text)) == text
    assert time.process_time() - started < 2.0


texts = st.lists(
    st.sampled_from([ENGLISH, CHINESE, "word ", "長い", "\n\n", "x" * 70, "A. ", "no end ", "🙂", "\n", "。"])
    | st.text(),
    max_size=60,
).map("".join)
policies = st.integers(16, 120).flatmap(
    lambda size: st.builds(WindowPolicy, tokens=st.just(size), overlap=st.integers(0, size // 2))
)


@given(texts)
def test_sentences_are_the_text(text: str) -> None:
    assert "".join(windows.sentences(text)) == text
    assert all(windows.sentences(text)) or not text


@given(texts, policies)
def test_windows_cover_the_text_and_keep_to_size_and_overlap(text: str, policy: WindowPolicy) -> None:
    parts, costs = windows.pieces(text, policy.tokens, lengths)
    assert "".join(parts) == text
    assert max(costs, default=0) <= policy.tokens
    spans = windows.pack(costs, policy.tokens, policy.overlap)
    assert not text or spans[0][0] == 0
    for (start, end), (next_start, next_end) in pairwise(spans):
        assert start < next_start <= end < next_end
        assert sum(costs[next_start:end]) <= policy.overlap
    assert all(sum(costs[start:end]) <= policy.tokens for start, end in spans)
    assert not text or spans[-1][1] == len(parts)
    assert windows.windows(text, policy, lengths) == ["".join(parts[a:b]) for a, b in spans]


@given(texts)
def test_the_estimate_of_a_window_is_no_more_than_its_pieces(text: str) -> None:
    policy = WindowPolicy(tokens=32, overlap=8)

    def estimates(given: Sequence[str]) -> list[int]:
        return [tokens.of_text(one) for one in given]

    assert all(size <= 32 for size in estimates(windows.windows(text, policy, estimates)))


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(16, 64))
def test_the_overlap_is_as_large_as_it_may_be(costs: list[int], size: int) -> None:
    spans = windows.pack(costs, size, size // 4)
    for (start, end), (next_start, _) in pairwise(spans):
        one_more = sum(costs[next_start - 1 : end])
        assert next_start == start or one_more > size // 4 or one_more + costs[end] > size


def test_a_sentence_is_cut_between_lines_or_words_before_characters() -> None:
    parts, _ = windows.pieces("one two three four five\nsix seven eight nine ten", 16, lengths)
    assert all(part[-1].isspace() for part in parts[:-1])
    parts, _ = windows.pieces("x" * 100, 16, lengths)
    assert {len(part) for part in parts} == {12, 13}


def test_the_default_windows_reach_about_a_hundred_thousand_tokens() -> None:
    assert windows.most_tokens(WindowPolicy()) == 98_816
    assert windows.most_tokens(WindowPolicy(tokens=8_192, overlap=512)) == windows.MAX_TOKENS


def test_the_document_is_the_longest_message_of_the_user() -> None:
    messages = (
        Message(Role.SYSTEM, "s" * 99),
        Message(Role.USER, "u" * 50),
        Message(Role.ASSISTANT, "a" * 70),
        Message(Role.USER, "v" * 50),
    )
    assert windows.document_of(messages) == 3
    assert windows.document_of(messages[:1]) == 0


def short(text: str) -> bool:
    return len(text) <= 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Summarise this:\n\nlong text\nof many lines " + "x" * 30, ("Summarise this:", "x", "")),
        ("Summarise this:\nlong text " + "x" * 30, ("Summarise this:", "x", "")),
        ("Summarise. Long text " + "x" * 30, ("Summarise. ", "x", "")),
        ("x" * 30 + "\n\nWhat is it about?", ("", "x", "What is it about?")),
        ("Read:\n\n" + "x" * 30 + "\nWhat is it?", ("Read:", "x", "What is it?")),
        ("x" * 50, ("", "x", "")),
        ("", ("", "", "")),
    ],
)
def test_what_stands_around_a_document_may_be_the_instruction(
    text: str, expected: tuple[str, str, str]
) -> None:
    head, body, tail = windows.instructions(text, short)
    assert (head, body[-1:], tail) == expected
    assert "".join((head + body + tail).split()) == "".join(text.split())
