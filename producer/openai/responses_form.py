"""What a response is asked for with: OpenAI's parameters, their bounds, and those that are refused."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from jobs.domain.requests import Role
from producer.refusals import Code, Refusal
from producer.request import MaxTokens, MetadataKey, MetadataValue, Text, decode, refusal_of
from producer.response_format import FormatType, ResponseFormat

LOGPROBS = "message.output_text.logprobs"  # the one thing that can be included


def _unsupported(what: str) -> PydanticCustomError:
    return PydanticCustomError(Code.UNSUPPORTED_PARAMETER, f"{what} not supported here")


def asks_for_nothing(value: object) -> object:
    """The value, which is empty; else it is refused as unsupported."""
    given = [part for part in value.values() if part is not None] if isinstance(value, Mapping) else value
    if given:
        raise _unsupported("It is")
    return value


def _includable(value: str) -> str:
    if value != LOGPROBS:
        raise _unsupported("Only message.output_text.logprobs can be included; this is")
    return value


def _text_part(value: str) -> str:
    if value not in ("input_text", "output_text"):
        raise _unsupported("Only text can be sent; this kind of content is")
    return value


def _message(value: str) -> str:
    if value != "message":
        raise _unsupported("Only messages can be sent; this kind of item is")
    return value


def _plain(value: str) -> str:
    if value != "medium":
        raise _unsupported("Only medium verbosity can be asked for; this is")
    return value


def _choice(value: object) -> object:
    if value not in ("auto", "none"):
        raise _unsupported("There are no tools to choose: it is")
    return value


def _messages(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _parts(value: object) -> object:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else value


Unsupported = Annotated[Any, AfterValidator(asks_for_nothing), WithJsonSchema({"type": "null"})]
Included = Annotated[list[Annotated[str, AfterValidator(_includable)]], Field(max_length=8)]
Label = Annotated[Text, Field(max_length=512)]


class _Form(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class TextPart(_Form):
    """A piece of a message. An answer's piece comes back with what it was answered with."""

    type: Annotated[str, AfterValidator(_text_part)]
    text: Text
    annotations: Any = None
    logprobs: Any = None


class InputMessage(_Form):
    """One turn of the conversation, written by hand or taken from an earlier answer's output."""

    type: Annotated[str, AfterValidator(_message)] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Annotated[list[TextPart], BeforeValidator(_parts, json_schema_input_type=str | list[TextPart])]
    id: Any = None
    status: Any = None
    phase: Any = None

    @model_validator(mode="after")
    def _says_something(self) -> "InputMessage":
        # Only an answer may be empty, as some are.
        if self.role != "assistant" and not self.text.strip():
            raise PydanticCustomError(Code.EMPTY, "Text is empty or blank")
        return self

    @property
    def text(self) -> str:
        """All of it, a line for each piece."""
        return "\n".join(part.text for part in self.content)

    @property
    def speaker(self) -> Role:
        """Who speaks, as engines know it: a developer is the system."""
        return Role.SYSTEM if self.role == "developer" else Role(self.role)


class TextFormat(_Form):
    """What the answer must be."""

    type: Annotated[FormatType, Field(strict=False)]
    name: Any = None
    # Not named `schema`, which pydantic has as a method.
    schema_: Any = Field(default=None, alias="schema")
    strict: Any = None
    description: Unsupported = None

    def wanted(self) -> ResponseFormat:
        """The same as the engines take it. Raises `Refusal`."""
        given = {"name": self.name, "schema": self.schema_, "strict": self.strict}
        schema = {name: value for name, value in given.items() if value is not None}
        try:
            return ResponseFormat.model_validate(
                {"type": self.type, **({"json_schema": schema} if schema else {})}
            )
        except ValidationError as error:
            refusal = refusal_of(error.errors(include_url=False, include_input=False))
            inner = (refusal.field or "").removeprefix("json_schema").lstrip(".")
            refusal.field = ".".join(filter(None, ("text.format", inner)))
            raise refusal from None


class TextOptions(_Form):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: Annotated[str, AfterValidator(_plain)] | None = None


class StreamOptions(_Form):
    """How the events are sent."""

    include_obfuscation: Unsupported = None


Input = Annotated[
    list[InputMessage],
    Field(min_length=1),
    BeforeValidator(_messages, json_schema_input_type=str | list[InputMessage]),
]


class InputToCount(_Form):
    """What decides how many tokens a response's input has; all else is refused."""

    model: Text | None = Field(default=None, description="By default the model that is served.")
    input: Input | None = None
    instructions: Text | None = None
    previous_response_id: Text | None = None
    text: TextOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Annotated[Any, AfterValidator(_choice), WithJsonSchema({"enum": ["auto", "none"]})] = "auto"

    conversation: Unsupported = None
    personality: Unsupported = None
    reasoning: Unsupported = None
    tools: Unsupported = None


class CreateResponse(InputToCount):
    """A request for one response. What is not supported is refused by name, unknown fields too."""

    input: Input
    background: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = Field(default=None, description="By default true.")
    service_tier: Text | None = None
    max_output_tokens: MaxTokens | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    include: Included | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None

    access_programs: Unsupported = None
    background_options: Unsupported = None
    context_management: Unsupported = None
    image: Unsupported = None
    max_tool_calls: Unsupported = None
    moderation: Unsupported = None
    prompt: Unsupported = None
    prompt_cache_options: Unsupported = None
    prompt_cache_retention: Unsupported = None

    @property
    def stored(self) -> bool:
        """Whether the response can be asked for later."""
        return self.store is not False

    def echo(self) -> dict[str, Any]:
        """What the response shows again of these parameters, as JSON."""
        return self.model_dump(mode="json", include=_ECHOED, exclude_none=True, by_alias=True)


_ECHOED = {
    "max_output_tokens",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "temperature",
    "text",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
}


def parse(value: bytes | object) -> CreateResponse:
    """The form in a JSON body, or in its value. Raises `Refusal` and names the first thing that is wrong."""
    try:
        form = CreateResponse.model_validate(decode(value) if isinstance(value, bytes) else value)
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False, include_input=False)) from None
    if form.background and not form.stored:
        raise Refusal(
            Code.CONFLICTING_FIELDS,
            "Who asks later for a background response asks for a stored one",
            field="store",
            remedy="Leave store out, or background.",
        )
    return form
