"""The form of an answer that a caller may demand: OpenAI's `response_format`, within bounds."""

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from producer.refusals import Code

MAX_SCHEMA_CHARS = 32_768
MAX_SCHEMA_DEPTH = 64


class FormatType(StrEnum):
    """The forms, by OpenAI's names."""

    TEXT = "text"
    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    if _depth(schema) > MAX_SCHEMA_DEPTH:
        raise PydanticCustomError(
            Code.TOO_LONG, "The schema nests too deep", {"max_length": MAX_SCHEMA_DEPTH}
        )
    try:
        text = json.dumps(schema, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError):
        raise PydanticCustomError(Code.INVALID_VALUE, "The schema is not JSON in UTF-8") from None
    if "\\u0000" in text:
        raise PydanticCustomError(Code.UNSTORABLE_TEXT, "NUL characters cannot be stored")
    if len(text) > MAX_SCHEMA_CHARS:
        raise PydanticCustomError(
            Code.TOO_LONG, "The schema is too long as JSON", {"max_length": MAX_SCHEMA_CHARS}
        )
    return schema


def _depth(value: object) -> int:
    """How deep objects and arrays nest; counted no further than one past the limit."""
    depth, level = 0, [value]
    while level and depth <= MAX_SCHEMA_DEPTH:
        depth += 1
        level = [inner for outer in level for inner in _inner(outer) if isinstance(inner, Mapping | list)]
    return depth


def _inner(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return value if isinstance(value, list) else []


class _Form(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, serialize_by_alias=True
    )


class JsonSchema(_Form):
    """A named JSON Schema that the answer must meet."""

    name: Annotated[str, Field(pattern="^[A-Za-z0-9_-]{1,64}$")]
    # Not named `schema`, which pydantic has as a method.
    schema_: Annotated[dict[str, Any], AfterValidator(_schema)] = Field(
        alias="schema", description=f"At most {MAX_SCHEMA_CHARS} characters, nested {MAX_SCHEMA_DEPTH} deep."
    )
    strict: bool | None = Field(default=None, description="Every schema is kept to strictly.")


class ResponseFormat(_Form):
    """What the answer must be: any text, one JSON object, or JSON that meets a schema."""

    type: Annotated[FormatType, Field(strict=False)]
    json_schema: JsonSchema | None = Field(default=None, description="With type `json_schema`, and only it.")

    @model_validator(mode="after")
    def _has_its_schema(self) -> "ResponseFormat":
        if (self.type is FormatType.JSON_SCHEMA) != (self.json_schema is not None):
            code = Code.CONFLICTING_FIELDS if self.json_schema else Code.MISSING_FIELD
            raise PydanticCustomError(code, "json_schema is given with type json_schema, and only with it")
        return self

    def stored(self) -> dict[str, Any] | None:
        """OpenAI's object; None for any text."""
        if self.type is FormatType.TEXT:
            return None
        return self.model_dump(mode="json", exclude_none=True, by_alias=True)
