"""Drops from the middle of a conversation what is too long for a lane (OpenAI's `truncation: auto`)."""

from collections.abc import Sequence
from itertools import accumulate

from jobs.domain.requests import Message, Role
from jobs.tokenizer import TokenCounter

CUT = "\n[...]\n"
_LEAST_CHARS = 64  # a message is not cut shorter than that
_MARGIN = 0.02  # of a text's characters: their tokens are not spread evenly


def fitted(messages: Sequence[Message], room: int, counter: TokenCounter) -> tuple[list[Message], int]:
    """The conversation in at most `room` tokens, if that can be, and how many tokens were dropped.

    Whole turns go first, the oldest of those between the first turn after the instructions and the last one.
    Where that is not enough, the longest turn loses its middle, which `CUT` marks. Instructions (system
    messages at the beginning) and roles stay.
    """
    total = counter.count(messages)
    if total <= room:
        return list(messages), 0
    kept = _without_middle(messages, total - room, counter)
    while (size := counter.count(kept)) > room:
        place = _longest(kept)
        text = kept[place].content
        # At most half at a time: another one may be the longest then.
        shorter = _shortened(text, min((size - room) / max(counter.count_texts([text])[0], 1), 0.5))
        if shorter is None:
            break
        kept[place] = Message(kept[place].role, shorter)
    return kept, total - size


def _without_middle(messages: Sequence[Message], excess: int, counter: TokenCounter) -> list[Message]:
    """Without the fewest of the middle turns whose texts have `excess` tokens, or without all of them."""
    start = _instructions(messages) + 1
    middle = messages[start:-1]
    dropped = list(accumulate(counter.count_texts([turn.content for turn in middle]), initial=0))
    enough = next((number for number, tokens in enumerate(dropped) if tokens >= excess), len(middle))
    return [*messages[:start], *messages[start + enough :]]


def _instructions(messages: Sequence[Message]) -> int:
    """How many system messages stand at the beginning; the last message is none of them."""
    spoken = (place for place, turn in enumerate(messages) if turn.role is not Role.SYSTEM)
    return min(next(spoken, len(messages)), len(messages) - 1)


def _longest(messages: Sequence[Message]) -> int:
    return max(range(_instructions(messages), len(messages)), key=lambda place: len(messages[place].content))


def _shortened(text: str, share: float) -> str | None:
    """The text without about `share` of it, from its middle; None where too little would be left."""
    kept = int(len(text) * (1 - share - _MARGIN)) - len(CUT)
    if kept < _LEAST_CHARS:
        return None
    return text[: kept - kept // 2] + CUT + text[len(text) - kept // 2 :]
