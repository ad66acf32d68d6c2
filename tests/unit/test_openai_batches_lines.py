"""Lines are cut from pieces as they are from the whole, and none is held beyond its limit."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.jsonl import Line, lines

MOST = 5
_content = st.text(alphabet="ab \n\r", max_size=60).map(str.encode)


def pieces(content: bytes, cuts: list[int]) -> list[bytes]:
    """The content, cut at these places."""
    places = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    return [content[start:end] for start, end in itertools.pairwise(places)]


@given(_content, st.lists(st.integers(0, 1_000), max_size=8))
def test_how_a_file_is_cut_into_pieces_does_not_show(content: bytes, cuts: list[int]) -> None:
    whole = enumerate(content.split(b"\n"), start=1)
    expected = [
        Line(number, None if len(line) > MOST else line.strip())
        for number, line in whole
        if len(line) > MOST or line.strip()
    ]
    assert list(lines(pieces(content, cuts), MOST)) == expected


def test_a_line_without_an_end_is_not_held() -> None:
    def endless(n: int) -> list[bytes]:
        return [b"x" * 1_000] * n

    assert list(lines(endless(1_000), 1_000)) == [Line(1, None)]
    assert list(lines([*endless(2), b"\nab"], 1_000)) == [Line(1, None), Line(2, b"ab")]
