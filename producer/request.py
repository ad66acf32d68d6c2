"""What a caller may ask for: the form of a request, its bounds, and how a violation becomes a refusal."""

import base64
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from jobs.domain.events import DEFAULT_EVENTS, EventType
from jobs.domain.lanes import DEFAULT_PRIORITY, Kind
from jobs.domain.requests import Role
from jobs.secrets import WEBHOOK_PREFIX
from producer.refusals import Code, Refusal
from producer.response_format import ResponseFormat

DEFAULT_MAX_TOKENS: Mapping[Kind, int] = {Kind.CHAT: 200, Kind.TICKET: 256, Kind.REPORT: 512}
MAX_DEADLINE_S = 30 * 86_400
_FIELD_CHARS = 200


def _storable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError(Code.UNSTORABLE_TEXT, "Lone surrogates cannot be stored") from None
    if "\0" in text:
        raise PydanticCustomError(Code.UNSTORABLE_TEXT, "NUL characters cannot be stored")
    return text


def _spoken(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError(Code.EMPTY, "Text is empty or blank")
    return _storable(text)


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _aware(value: object) -> datetime:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise PydanticCustomError(Code.INVALID_VALUE, "Input should be an ISO 8601 time with a UTC offset")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError(Code.OUT_OF_RANGE, "Input is outside the calendar") from None


def _signing_secret(secret: str) -> str:
    encoded = secret.removeprefix(WEBHOOK_PREFIX)
    try:
        size = len(base64.b64decode(encoded, validate=True)) if encoded != secret else 0
    except ValueError:
        size = 0
    if not 24 <= size <= 64:
        raise PydanticCustomError(
            Code.INVALID_VALUE, "Input should be 'whsec_' and the base64 of 24 to 64 random bytes"
        )
    return secret


Text = Annotated[str, AfterValidator(_storable)]
SpokenText = Annotated[str, AfterValidator(_spoken)]
StopWord = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_storable)]
StopWords = Annotated[
    list[StopWord],
    Field(max_length=4),
    BeforeValidator(_one_or_more),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1, "maxLength": 256},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 4},
            ]
        }
    ),
]
Moment = Annotated[datetime, BeforeValidator(_aware)]  # in UTC: Postgres takes no offset of a day
MaxTokens = Annotated[int, Field(ge=1, le=1_000_000)]  # a lane's model length bounds it further
Penalty = Annotated[float, Field(ge=-2, le=2)]
TokenId = Annotated[str, Field(pattern="^[0-9]{1,7}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
MetadataKey = Annotated[str, Field(min_length=1, max_length=64), AfterValidator(_storable)]
MetadataValue = Annotated[str, Field(max_length=512), AfterValidator(_storable)]


class _Form(BaseModel):
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


class ChatMessage(_Form):
    """One turn of the conversation."""

    role: Annotated[Role, Field(strict=False)]
    content: SpokenText


class WebhookTarget(_Form):
    """Where the job's events are sent, and which."""

    url: Annotated[str, Field(max_length=2_048), AfterValidator(_storable)] = Field(
        description="An http(s) address that is reachable from the public network."
    )
    events: list[Annotated[EventType, Field(strict=False)]] = Field(
        default=list(DEFAULT_EVENTS), min_length=1, description="By default all that end a job."
    )
    secret: Annotated[str, AfterValidator(_signing_secret)] | None = Field(
        default=None,
        description="Signs these events (Standard Webhooks: `whsec_` and base64); by default the tenant's.",
    )


class Request(_Form):
    """A request for one text. Either `messages` or `prompt` is given; unknown fields are refused."""

    kind: Annotated[Kind, Field(strict=False)] = Field(description="What the job is for.")
    model: Text | None = Field(default=None, description="By default the model that is served.")
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    prompt: SpokenText | None = Field(default=None, description="Short for one message of the user.")

    max_tokens: MaxTokens | None = Field(
        default=None,
        description="Longest answer in tokens; by default "
        + ", ".join(f"{tokens} for a {kind}" for kind, tokens in DEFAULT_MAX_TOKENS.items())
        + ".",
    )
    max_completion_tokens: MaxTokens | None = Field(default=None, description="Another name of `max_tokens`.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopWords | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(default=None, description="0: all.")
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: int = Field(default=1, ge=1, le=8, description="Answers to the one prompt; the first is streamed.")
    logprobs: bool | None = Field(default=None, description="Keep each token's log-probability.")
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(
        default=None, description="Likeliest tokens to keep in each place; needs `logprobs`."
    )
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=300)] | None = Field(
        default=None, description="Token ids of the model, each with what is added to its logit."
    )
    bad_words: Annotated[list[StopWord], Field(max_length=64)] | None = Field(
        default=None, description="Texts whose token sequences are never chosen."
    )
    response_format: ResponseFormat | None = None
    windows: bool = Field(
        default=True,
        description="Whether a document longer than its lane is answered in windows; else it is refused.",
    )

    lane: Text | None = Field(
        default=None, description="By default the slower of the kind's lane and the prompt length's."
    )
    priority: int = Field(default=DEFAULT_PRIORITY, ge=0, le=9, description="0 is most urgent.")
    deadline_s: Annotated[float, Field(gt=0, le=MAX_DEADLINE_S)] | None = Field(
        default=None, description="Seconds from acceptance until the job expires; by default the lane's."
    )
    not_before: Moment | None = Field(
        default=None, description="The job does not start earlier; it must lie before the deadline."
    )
    max_attempts: int = Field(default=3, ge=1, le=20, description="Failures after which the job has failed.")
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16)] | None = Field(
        default=None, description="Kept with the job and sent with its events; never shown to the model."
    )
    webhook: WebhookTarget | None = None


def parse(body: bytes) -> Request:
    """The request in a JSON body. Raises `Refusal` and names the first thing that is wrong."""
    return Request.model_validate(decode(body))


def decode(body: bytes) -> Any:
    """The JSON value of a body. Raises `Refusal` where it is none, or an object has a field twice."""
    try:
        return json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except Refusal:
        raise
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise Refusal(
            Code.INVALID_JSON, f"The body is not JSON in UTF-8{where}", remedy="Send one JSON object."
        ) from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise Refusal(
            Code.DUPLICATE_FIELD,
            "The field is given twice in one object",
            field=_shown(counts.most_common(1)[0][0]),
            remedy="Give it once.",
        )
    return value


def _no_constant(name: str) -> None:
    raise Refusal(Code.INVALID_JSON, f"{name} is not JSON", remedy="Send finite numbers.")


# --- violations become refusals -----------------------------------------------------------------------

_CODES = {code.value: code for code in Code} | {
    "extra_forbidden": Code.UNKNOWN_FIELD,
    "missing": Code.MISSING_FIELD,
    "string_unicode": Code.UNSTORABLE_TEXT,
    "string_too_long": Code.TOO_LONG,
    "too_long": Code.TOO_LONG,
    "string_too_short": Code.EMPTY,
    "too_short": Code.EMPTY,
    "greater_than": Code.OUT_OF_RANGE,
    "greater_than_equal": Code.OUT_OF_RANGE,
    "less_than": Code.OUT_OF_RANGE,
    "less_than_equal": Code.OUT_OF_RANGE,
    "finite_number": Code.OUT_OF_RANGE,
}
_REMEDIES = {
    Code.UNKNOWN_FIELD: "Remove it; the API's documentation lists the fields.",
    Code.MISSING_FIELD: "Add it.",
    Code.UNSTORABLE_TEXT: "Remove NUL characters and lone surrogates.",
    Code.TOO_LONG: "Shorten it.",
    Code.EMPTY: "Fill it in.",
    Code.OUT_OF_RANGE: "Choose a value within the limit.",
    Code.WRONG_TYPE: "Send the type that is named.",
    Code.UNKNOWN_KIND: f"Use one of {', '.join(Kind)}.",
}
_MESSAGES = dict.fromkeys(("model_type", "dict_type"), "Input should be an object")
_LIMITS = ("max_length", "min_length", "le", "lt", "ge", "gt", "expected")


def refusal_of(violations: Sequence[Mapping[str, Any]], skip: int = 0) -> Refusal:
    """The refusal for the first of pydantic's violations; `skip` leading parts of its path are not shown."""
    first = violations[0]
    field = _path(first["loc"][skip:])
    code = _code(first["type"], field)
    context = first.get("ctx") or {}
    limit = next((context[name] for name in _LIMITS if name in context), None)
    message = _MESSAGES.get(first["type"], first["msg"])
    return Refusal(code, message, field=field, limit=limit, remedy=_REMEDIES.get(code))


def _code(violation: str, field: str | None) -> Code:
    if violation in _CODES:
        return _CODES[violation]
    if violation == "enum" and field == "kind":
        return Code.UNKNOWN_KIND
    return Code.WRONG_TYPE if violation.endswith("_type") else Code.INVALID_VALUE


def _path(location: Sequence[str | int]) -> str | None:
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part != "[key]":
            path += f".{part}" if path else part
    return _shown(path) if path else None


def _shown(name: str) -> str:
    return name.encode(errors="replace").decode()[:_FIELD_CHARS]
