"""A document that is longer than its lane: which message it is, its sentences, and the windows they make."""

import re
from collections.abc import Callable, Sequence

from jobs.domain.policies import WindowPolicy
from jobs.domain.requests import Message, Role

MAX_WINDOWS = 64
MAX_TOKENS = 131_072  # of a prompt that is answered in windows

Count = Callable[[Sequence[str]], Sequence[int]]

_CLOSERS = "\"'”’)\\]」』）】》"
# A wide full stop ends a sentence by itself, a narrow one with the space after it, an empty line always. The
# look-behind lets a row of dots be looked at once, not once from each of its dots.
_BORDER = re.compile(rf"[。！？｡][。！？｡{_CLOSERS}]*\s*|(?<![.!?…])[.!?…]+[{_CLOSERS}]*\s+|\n\s*\n\s*")
# After these, and after an initial, a full stop ends no sentence.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|(?i:mrs?|ms|dr|prof|[js]r|st|rev|gen|col|capt|lt|gov|sen|rep|vs|etc|cf|al|e\.g|i\.e"
    r"|figs?|nos|vol|pp?|ch|sec|eq|eds?|inc|ltd|co|corp|dept|univ|approx|jan|feb|apr|jun|jul|aug|sept?|oct|nov"
    r"|dec))\Z"
)


def most_tokens(policy: WindowPolicy) -> int:
    """The longest prompt in tokens that is answered in windows."""
    stride = policy.tokens - policy.overlap
    return min(policy.tokens + (MAX_WINDOWS - 1) * stride, MAX_TOKENS)


def document_of(messages: Sequence[Message]) -> int:
    """Which message is the document: the longest of the user's, the last of several; any, where none is."""
    users = [place for place, message in enumerate(messages) if message.role is Role.USER]
    return max(users or range(len(messages)), key=lambda place: (len(messages[place].content), place))


def sentences(text: str) -> list[str]:
    """The sentences of an English or Chinese text, each with the space after it; joined they are the text.

    Abbreviations, initials and what goes on in lower case end no sentence.
    """
    ends = [found.end() for found in _BORDER.finditer(text) if _is_border(text, found)]
    if not ends or ends[-1] < len(text):
        ends.append(len(text))
    starts = [0, *ends]
    return [text[start:end] for start, end in zip(starts, ends, strict=False) if start < end]


def _is_border(text: str, found: re.Match[str]) -> bool:
    if not found[0].rstrip().startswith((".", "…")) or "\n\n" in found[0]:
        return True
    following = text[found.end() : found.end() + 1]
    if following.islower():
        return False
    before = text[max(0, found.start() - 10) : found.start()]
    return found[0].rstrip() != "." or _ABBREVIATION.search(before) is None


def pieces(text: str, size: int, count: Count) -> tuple[list[str], list[int]]:
    """The text's sentences and their tokens; one of more than `size` tokens is cut between lines, words or,
    where it has none, characters.

    `count` gives the tokens of many texts; a single character may be more than `size`.
    """
    return _fitted(sentences(text), size, count)


def _fitted(texts: Sequence[str], size: int, count: Count) -> tuple[list[str], list[int]]:
    fitted: list[str] = []
    costs: list[int] = []
    for text, cost in zip(texts, count(texts), strict=True):
        if cost <= size or len(text) == 1:
            parts, part_costs = [text], [cost]
        else:
            parts, part_costs = _fitted(_halves(text), size, count)
        fitted += parts
        costs += part_costs
    return fitted, costs


def _halves(text: str) -> tuple[str, str]:
    middle = len(text) // 2
    borders = (text.rfind(separator, middle // 2, middle) for separator in ("\n", " "))
    cut = next((border + 1 for border in borders if border >= 0), middle)
    return text[:cut], text[cut:]


def pack(costs: Sequence[int], size: int, overlap: int) -> list[tuple[int, int]]:
    """Windows as (start, end) over pieces of these costs: each of at most `size`, all pieces in order.

    A window begins with as many of the pieces before it as fit into `overlap`. A piece that is larger than
    `size` is a window by itself.
    """
    spans: list[tuple[int, int]] = []
    start = end = total = 0
    while end < len(costs):
        while end < len(costs) and (start == end or total + costs[end] <= size):
            total += costs[end]
            end += 1
        spans.append((start, end))
        while end < len(costs) and start < end and (total > overlap or total + costs[end] > size):
            total -= costs[start]
            start += 1
    return spans


def windows(text: str, policy: WindowPolicy, count: Count) -> list[str]:
    """The text as overlapping windows on sentence borders."""
    parts, costs = pieces(text, policy.tokens, count)
    return ["".join(parts[start:end]) for start, end in pack(costs, policy.tokens, policy.overlap)]


def instructions(text: str, is_short: Callable[[str], bool]) -> tuple[str, str, str]:
    """A document as (head, body, tail): what stands before and after it and may say what to do with it.

    The head is the first paragraph, else the first line, else the first sentence, that is short; the tail is
    the last short paragraph or line. Either may be empty, and may be the document's own: it is only shown
    with every window.
    """
    body = text.strip()
    head, body = _head(body, is_short)
    for separator in ("\n\n", "\n"):
        rest, _, tail = body.rpartition(separator)
        if rest and is_short(tail):
            return head, rest, tail
    return head, body, ""


def _head(text: str, is_short: Callable[[str], bool]) -> tuple[str, str]:
    for separator in ("\n\n", "\n"):
        head, _, rest = text.partition(separator)
        if rest and is_short(head):
            return head, rest
    first = sentences(text)[0] if text else ""
    return (first, text[len(first) :]) if len(first) < len(text) and is_short(first) else ("", text)
