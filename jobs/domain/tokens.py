"""How many tokens a prompt will be, estimated without any tokenizer."""

import re
from collections.abc import Sequence

from jobs.domain.requests import Message

# ChatML, as in SmolLM2 and Qwen: two markers, role and two newlines per message; three to open the answer.
MESSAGE_OVERHEAD = 5
ANSWER_OVERHEAD = 3

_WIDE = re.compile("[\u2e80-\U0010ffff]")  # CJK, kana, hangul, emoji


def estimate(messages: Sequence[Message]) -> int:
    """Tokens of the chat prompt: one per wide character (from U+2E80 on), one per 4 UTF-8 bytes of the rest
    (rounded up per message), plus ChatML's overhead.

    The usual rule of thumb, with its limits. SmolLM2's small, English vocabulary really needs 1.1 times as
    many for prose and code, 1.3 for short sentences, 1.7 for Russian, 2.3 for Chinese and 2.8 for emoji.
    """
    return ANSWER_OVERHEAD + sum(MESSAGE_OVERHEAD + of_text(message.content) for message in messages)


def of_text(text: str) -> int:
    """Tokens of a text by itself, by the same rule."""
    narrow = _WIDE.sub("", text)
    return len(text) - len(narrow) + -(-len(narrow.encode()) // 4)
