"""A chat completion as it is asked for over HTTP: the request, its tier, and how the answer travels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from producer.openai import chat
from producer.openai.tiers import LANE_OF_TIER
from producer.refusals import Code, Refusal
from producer.request import Request, decode, refusal_of


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and what is asked beside it."""

    request: Request
    tier: str | None
    stream: bool
    usage_at_the_end: bool


def parse(body: bytes) -> Asked:
    """What a JSON body asks. Raises `Refusal` and names the first thing that is wrong."""
    given = decode(body)
    if not isinstance(given, dict):
        raise Refusal(Code.WRONG_TYPE, "Input should be an object", remedy="Send one JSON object.")
    stream = bool(_typed(given, "stream", bool))
    options = _typed(given, "stream_options", dict)
    if options is not None and not stream:
        raise Refusal(
            Code.CONFLICTING_FIELDS,
            "Only a stream has stream_options",
            field="stream_options",
            remedy="Set stream to true, or leave it out.",
        )
    try:
        request = chat.to_request(given)
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False, include_input=False)) from None
    return Asked(request, _typed(given, "service_tier", str), stream, _usage_at_the_end(options or {}))


def _usage_at_the_end(options: Mapping[str, Any]) -> bool:
    for name, value in options.items():
        # Trilane pads no chunk, so that whoever wants none padded has it.
        if name != "include_usage" and (name != "include_obfuscation" or value):
            raise Refusal(
                Code.UNSUPPORTED_PARAMETER,
                "This is not supported here, or there is no such parameter",
                field=f"stream_options.{name}"[:200],
                remedy="Leave it out.",
            )
    return bool(_typed(options, "include_usage", bool, "stream_options."))


def _typed(given: Mapping[str, Any], name: str, kind: type, where: str = "") -> Any:
    """The value of a field, or None."""
    value = given.get(name)
    if value is not None and not isinstance(value, kind):
        names = {bool: "true or false", str: "a text", dict: "an object"}
        raise Refusal(
            Code.WRONG_TYPE,
            f"Input should be {names[kind]}",
            field=where + name,
            remedy="Send the type that is named.",
        )
    return value


def schema() -> dict[str, Any]:
    """The JSON Schema of a body, for the API's document; its references are to that of `Request`."""
    ours = Request.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
    text = _object({"type": {"const": "text"}, "text": {"type": "string"}}, "type", "text")
    content = {"anyOf": [{"type": "string"}, {"type": "array", "items": text}]}
    roles = {"enum": ["developer", "system", "user", "assistant"]}
    label = {"anyOf": [{"type": "string", "maxLength": chat.MAX_LABEL_CHARS}, {"type": "null"}]}
    options = _object({"include_usage": {"type": "boolean"}, "include_obfuscation": {"const": False}})
    message = _object({"role": roles, "content": content}, "role", "content")
    return _object(
        {
            "messages": {"type": "array", "minItems": 1, "items": message},
            **{name: ours[name] for name in chat.SAME},
            "service_tier": {"enum": [*LANE_OF_TIER, None]},
            "stream": {"type": ["boolean", "null"]},
            "stream_options": {"anyOf": [options, {"type": "null"}]},
            **dict.fromkeys(chat.LABELS, label),
            **{name: {"enum": [*values, None]} for name, values in chat.UNSUPPORTED.items()},
        },
        "messages",
    )


def _object(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
