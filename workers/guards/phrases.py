"""Lists of phrases: their files, the form in which they are compared, and finding many of them at once."""

import unicodedata
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from workers.guards.seam import GuardUnusable


def read(file: str) -> tuple[str, ...]:
    """The phrases of a UTF-8 file, one a line; blank lines and lines that begin with # are left out.

    Raises `GuardUnusable` where the file cannot be read or holds none.
    """
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeError) as error:
        raise GuardUnusable(f"the phrases' file {file} cannot be read: {error}") from None
    phrases = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not phrases:
        raise GuardUnusable(f"the phrases' file {file} holds none: put one on each line")
    return phrases


@lru_cache(maxsize=8_192)
def folded(character: str) -> str:
    """A character as it is compared: compatibility-decomposed (NFKD) and case-folded, any space as one blank.

    Formatting characters and variation selectors are nothing: they show no text of their own.
    """
    if character.isspace():
        return " "
    if unicodedata.category(character) == "Cf" or character in _SELECTORS:
        return ""
    decomposed = unicodedata.normalize("NFKD", character).casefold()
    return unicodedata.normalize("NFKD", decomposed)


_SELECTORS = frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))


@lru_cache(maxsize=8_192)
def extends(character: str) -> bool:
    """Whether a folded character belongs to the one before: a mark, or a later part of a hangul syllable."""
    return unicodedata.category(character).startswith("M") or "\u1160" <= character <= "\u11ff"


def ordered(marks: Sequence[str]) -> list[str]:
    """Marks on one character in canonical order, so that the order in which they were typed is no matter."""
    return sorted(marks, key=unicodedata.combining)


def normalised(phrase: str) -> str:
    """A phrase as it is compared: folded, marks in order, spaces joined and none around it."""
    parts: list[str] = []
    marks: list[str] = []
    for character in (part for given in phrase for part in folded(given)):
        if extends(character):
            marks.append(character)
            continue
        parts += ordered(marks)
        marks = []
        parts.append(character)
    return " ".join("".join([*parts, *ordered(marks)]).split())


class Automaton:
    """Aho and Corasick's (1975): steps through a text once, whatever the number of phrases.

    A state is a number, 0 the beginning. `depth` of a state is how many of the last characters may begin a
    phrase, `found` the length of the longest phrase that ends here, else 0.
    """

    def __init__(self, phrases: Iterable[str]) -> None:
        """Phrases are taken as they are: normalise them before."""
        self._next: list[dict[str, int]] = [{}]
        self._fail, self.depth, self.found = [0], [0], [0]
        for phrase in filter(None, phrases):
            self._add(phrase)
        waiting = deque(self._next[0].values())
        while waiting:
            state = waiting.popleft()
            for character, child in self._next[state].items():
                self._fail[child] = self.step(self._fail[state], character)
                self.found[child] = self.found[child] or self.found[self._fail[child]]
                waiting.append(child)

    def _add(self, phrase: str) -> None:
        state = 0
        for character in phrase:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._fail.append(0)
                self.depth.append(self.depth[state] + 1)
                self.found.append(0)
            state = self._next[state][character]
        self.found[state] = len(phrase)

    def step(self, state: int, character: str) -> int:
        """The state after one more character."""
        while state and character not in self._next[state]:
            state = self._fail[state]
        return self._next[state].get(character, 0)
