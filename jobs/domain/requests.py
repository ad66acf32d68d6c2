"""What a job asks of a model: messages and sampling, as they are stored and as engines take them."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    """Who speaks in a message, by OpenAI's names."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters by their OpenAI or vLLM names; None leaves the engine's own default.

    `logit_bias` maps token ids to -100 to 100. `response_format` is OpenAI's object:
    `{"type": "json_object"}` or `{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}`.
    `windows` False refuses a document that is longer than its lane, where it would else be cut into windows.
    """

    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int = 1
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: Mapping[str, float] | None = None
    bad_words: tuple[str, ...] = ()
    response_format: Mapping[str, Any] | None = None
    windows: bool = True


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as an engine takes it; `priority` 0 is most urgent.

    `stop_repetition` lets an engine that knows a way of its own end a text that repeats itself.
    """

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    priority: int = 5
    stop_repetition: bool = False


def to_json(messages: tuple[Message, ...], sampling: Sampling) -> dict[str, Any]:
    """The stored form of a request: plain JSON, parameters that were not given left out."""
    fields = dataclasses.fields(Sampling)
    given = {
        field.name: value
        for field in fields
        if (value := getattr(sampling, field.name)) != field.default or field.name == "max_tokens"
    }
    return {"messages": [{"role": m.role.value, "content": m.content} for m in messages], "sampling": given}


def from_json(stored: Mapping[str, Any]) -> tuple[tuple[Message, ...], Sampling]:
    """The inverse of `to_json`."""
    messages = tuple(Message(Role(m["role"]), m["content"]) for m in stored["messages"])
    given = dict(stored["sampling"])
    for name in ("stop", "bad_words"):
        given[name] = tuple(given.get(name, ()))
    return messages, Sampling(**given)
