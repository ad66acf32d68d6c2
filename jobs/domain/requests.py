"""What a job asks of a model: messages and sampling, as they are stored and as engines take them."""

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
    """Sampling parameters by their OpenAI names; None leaves the engine's own default."""

    max_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float | None = None
    frequency_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One request as an engine takes it; `priority` 0 is most urgent."""

    id: str
    messages: tuple[Message, ...]
    sampling: Sampling = field(default_factory=Sampling)
    priority: int = 5


def to_json(messages: tuple[Message, ...], sampling: Sampling) -> dict[str, Any]:
    """The stored form of a request: plain JSON, parameters that were not given left out."""
    fields = Sampling.__dataclass_fields__
    given = {name: value for name in fields if (value := getattr(sampling, name)) not in (None, ())}
    return {"messages": [{"role": m.role.value, "content": m.content} for m in messages], "sampling": given}


def from_json(stored: Mapping[str, Any]) -> tuple[tuple[Message, ...], Sampling]:
    """The inverse of `to_json`."""
    messages = tuple(Message(Role(m["role"]), m["content"]) for m in stored["messages"])
    given = dict(stored["sampling"])
    given["stop"] = tuple(given.get("stop", ()))
    return messages, Sampling(**given)
