"""A conversation as the tokens that the model wants; nothing of vLLM is imported here."""

from collections.abc import Sequence
from typing import Any

from jobs.domain.requests import Message


def prompt_tokens(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The prompt by the model's own chat template, up to the opening of the answer.

    A model without one gets a line for each message, `role: content`, and then `assistant:`. Raises
    `ValueError` for a text that is no Unicode, and for what the template refuses.
    """
    for message in messages:
        message.content.encode()
    if getattr(tokenizer, "chat_template", "own") is None:
        lines = [f"{message.role.value}: {message.content}\n" for message in messages]
        tokens: list[int] = tokenizer.encode("".join([*lines, "assistant:"]))
        return tokens
    from jinja2 import TemplateError

    turns = [{"role": message.role.value, "content": message.content} for message in messages]
    try:
        tokens = tokenizer.apply_chat_template(
            turns, add_generation_prompt=True, tokenize=True, return_dict=False
        )
    except TemplateError as error:
        raise ValueError(str(error)) from error
    return tokens
