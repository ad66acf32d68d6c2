"""However a text is cut into pieces: a banned phrase never leaves, and nothing else is lost."""

from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.outcomes import FinishReason
from workers.guards.banned import Banned, compiled
from workers.guards.phrases import Automaton, normalised

few = st.text("ab", max_size=12)
any_text = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("aA é\u0301\u0323 ﬁ\u200bß\n"), max_size=12
)


def released(phrases: list[str], pieces: list[str]) -> tuple[str, bool]:
    """What the guard lets through of these pieces, and whether it ended the stream."""
    guard, text = Banned(compiled(tuple(phrases))), ""
    for place, piece in enumerate(pieces):
        passed = guard.see(piece, (), last=place == len(pieces) - 1)
        text += passed.text
        if passed.ends:
            assert passed.ends is FinishReason.CONTENT_FILTER
            return text, True
    return text, False


@given(st.lists(few.filter(bool), min_size=1, max_size=5), st.lists(few, min_size=1))
def test_the_text_is_cut_before_the_phrase_that_ends_first(phrases: list[str], pieces: list[str]) -> None:
    text = "".join(pieces)
    ends = (
        (end, phrase) for end in range(len(text) + 1) for phrase in phrases if text[:end].endswith(phrase)
    )
    first = min((end for end, _ in ends), default=None)
    if first is None:
        assert released(phrases, pieces) == (text, False)
        return
    longest = max(len(phrase) for phrase in phrases if text[:first].endswith(phrase))
    assert released(phrases, pieces) == (text[: first - longest], True)


@given(st.lists(any_text.filter(normalised), min_size=1, max_size=4), st.lists(any_text, min_size=1))
def test_any_text_in_any_pieces_is_cut_alike(phrases: list[str], pieces: list[str]) -> None:
    whole = released(phrases, ["".join(pieces)])
    assert released(phrases, pieces) == whole
    assert released(phrases, list("".join(pieces)) or [""]) == whole
    kept, ended = whole
    assert "".join(pieces).startswith(kept)
    assert ended or kept == "".join(pieces)
    assert released(phrases, [kept]) == (kept, False), "what came out holds no phrase"


@given(any_text.filter(normalised), any_text, any_text)
def test_a_phrase_is_found_wherever_it_stands(phrase: str, before: str, after: str) -> None:
    kept, ended = released([phrase], [f"{before}. ", phrase, f". {after}"])
    assert ended and len(normalised(kept)) <= len(normalised(f"{before}. "))


@given(st.lists(few, min_size=1), few)
def test_the_depth_is_the_longest_end_that_may_begin_a_phrase(phrases: list[str], text: str) -> None:
    automaton = Automaton(phrases)
    state = 0
    for end, character in enumerate(text, 1):
        state = automaton.step(state, character)
        ends = [text[start:end] for start in range(end)]
        assert automaton.depth[state] == max(
            (len(tail) for tail in ends if any(phrase.startswith(tail) for phrase in phrases)), default=0
        )
        assert automaton.found[state] == max((len(tail) for tail in ends if tail in phrases), default=0)
