"""Cuts a stream of bytes into numbered lines, holding no more than one line and one piece."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is not blank, with its number from 1 on; `data` is None where it is too long to be held."""

    number: int
    data: bytes | None


def lines(pieces: Iterable[bytes], most_bytes: int) -> Iterator[Line]:
    """The lines of what the pieces make, those of more than `most_bytes` without their data."""
    number, rest, too_long = 1, bytearray(), False
    for piece in pieces:
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            if not too_long:
                rest += piece[start:end]
            yield from _line(number, rest, too_long or len(rest) > most_bytes)
            number, start, too_long = number + 1, end + 1, False
            rest.clear()
        if not too_long:
            rest += piece[start:]
        if len(rest) > most_bytes:
            rest.clear()
            too_long = True
    yield from _line(number, rest, too_long)


def _line(number: int, data: bytearray, too_long: bool) -> Iterator[Line]:
    if too_long:
        yield Line(number, None)
    elif stripped := bytes(data).strip():
        yield Line(number, stripped)
