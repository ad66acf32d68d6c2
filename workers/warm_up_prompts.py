"""The prompts that run through a fresh engine: filler of a given length, and the lanes' own beginnings."""

import json
from collections.abc import Mapping
from itertools import count, cycle, islice, product
from pathlib import Path
from typing import Any

from jobs.domain.lanes import LanePolicy
from jobs.domain.requests import Message, Role

Messages = tuple[Message, ...]

# Where a lane names no file of its own.
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are a helpful assistant. Answer briefly and to the point.",
    "You are a helpful assistant for customer support. Be polite, and say so when you do not know.",
)
_GREETINGS = (
    "Hello!",
    "Hi there!",
    "Good morning!",
    "Hello, can you help me?",
    "你好！",
    "¡Hola!",
    "Bonjour !",
)
_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school")


class TemplatesError(ValueError):
    """A lane's file of templates cannot be read; the message names the place and the form."""


def templates(policy: LanePolicy) -> list[Messages]:
    """The lane's prompts whose beginnings are to be cached: its file's, else greetings and system prompts.

    Raises `TemplatesError`.
    """
    file = policy.warm_up.templates_file
    where = f"setting lane.{policy.name}.warm_up.templates_file"
    if file is None:
        spoken = [(Message(Role.USER, greeting),) for greeting in _GREETINGS]
        return [
            *spoken,
            *((Message(Role.SYSTEM, system), *rest) for system, rest in product(_SYSTEMS, spoken)),
        ]
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TemplatesError(f"{where}: {file} cannot be read ({error})") from None
    return [
        _messages(line, f"{where}: line {number} of {file}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]


def _messages(line: str, where: str) -> Messages:
    try:
        told: Mapping[str, Any] = json.loads(line)
        messages = tuple(Message(Role(one["role"]), str(one["content"])) for one in told["messages"])
    except (ValueError, TypeError, KeyError):  # whatever of the form is missing
        messages = ()
    if not messages:
        form = '{"messages": [{"role": "system", "content": "..."}, ...]}'
        raise TemplatesError(f"{where} is not of the form {form}")
    return messages


class Filler:
    """Prompts of about so many tokens, no two with the same beginning, so that none is cached for another."""

    def __init__(self) -> None:
        """Take every word for a token until `measure` knows better."""
        self._tokens_per_word, self._frame_tokens = 1.0, 0.0
        self._numbers = count()

    def of_words(self, words: int) -> Messages:
        """A prompt of so many words."""
        number = next(self._numbers)
        return (Message(Role.USER, " ".join((f"{number}:", *islice(cycle(_WORDS), words)))),)

    def of_tokens(self, tokens: int) -> Messages:
        """A prompt of about so many tokens, as the engine counts them with the template's own."""
        return self.of_words(max(1, round((tokens - self._frame_tokens) / self._tokens_per_word)))

    def measure(self, few: tuple[int, int], many: tuple[int, int]) -> None:
        """Learn from two prompts what a word costs, and what is around the words; each (words, tokens)."""
        self._tokens_per_word = max((many[1] - few[1]) / (many[0] - few[0]), 0.1)
        self._frame_tokens = few[1] - few[0] * self._tokens_per_word


def halved(messages: Messages) -> Messages | None:
    """The messages with the longest cut in half; None where nothing is left to cut."""
    longest = max(messages, key=lambda message: len(message.content))
    if len(longest.content) < 2:
        return None
    cut = Message(longest.role, longest.content[: len(longest.content) // 2])
    return tuple(cut if message is longest else message for message in messages)
