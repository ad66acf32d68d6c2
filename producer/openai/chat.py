"""Chat completions: what a body of OpenAI's asks, and how a job's answer is shown as one."""

from collections.abc import Mapping, Sequence
from typing import Any

from jobs.domain import openai_ids
from jobs.domain.jobs import Job
from jobs.domain.lanes import Kind
from jobs.domain.openai_ids import Prefix
from jobs.domain.outcomes import FinishReason
from producer.openai.files import unix
from producer.openai.tiers import TIER_OF_LANE
from producer.refusals import Code, Refusal
from producer.request import Request

# Fields that mean the same here and there.
SAME = (
    "model",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "seed",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "n",
    "logprobs",
    "top_logprobs",
    "logit_bias",
    "response_format",
    "metadata",
)
# Fields that others read: the service tier, and how the answer travels.
_ELSEWHERE = frozenset({"messages", "service_tier", "stream", "stream_options"})
# What the caller notes for itself. Prompts' beginnings are cached without a key.
LABELS = ("user", "safety_identifier", "prompt_cache_key")
MAX_LABEL_CHARS = 512
# Parameters that are not supported, each with the values beside null that ask for nothing.
UNSUPPORTED: Mapping[str, Sequence[Any]] = {
    "audio": (),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (),
    "prediction": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "store": (False,),
    "tool_choice": ("none",),
    "tools": (),
    "verbosity": (),
    "web_search_options": (),
}
_ROLES = {"developer": "system"}
_TOOL_ROLES = ("tool", "function")
# OpenAI has no word for it. `length` says what holds: the text was cut before its own end.
_FINISH_REASON = {FinishReason.REPETITION: FinishReason.LENGTH}


def to_request(body: Mapping[str, Any]) -> Request:
    """The request that a body makes; its lane is set elsewhere. Raises `Refusal` or `ValidationError`."""
    for name in body.keys() - _ELSEWHERE - set(SAME):
        _check_other(name, body[name])
    fields = {name: body[name] for name in SAME if body.get(name) is not None}
    if "messages" in body:
        fields["messages"] = _messages(body["messages"])
    # Windows are Trilane's own way with a long document: here a prompt that is too long is refused.
    return Request.model_validate({"kind": Kind.REPORT, "windows": False, **fields})


def _check_other(name: str, value: Any) -> None:
    """Refuse a parameter that is not known, or asks for what there is not."""
    if name in LABELS:
        if value is not None and not (isinstance(value, str) and len(value) <= MAX_LABEL_CHARS):
            raise Refusal(Code.WRONG_TYPE, "Input should be a short text", field=name, limit=MAX_LABEL_CHARS)
    elif name not in UNSUPPORTED or not (value is None or value in UNSUPPORTED[name]):
        raise _unsupported(name)


def _messages(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    messages = [_message(message, f"messages[{place}]") for place, message in enumerate(given)]
    return [message for message in messages if not _says_nothing(message)]


def _says_nothing(message: Any) -> bool:
    """Whether it is an answer of an earlier turn that was empty, as some are."""
    if not isinstance(message, dict) or message.get("role") != "assistant":
        return False
    content = message["content"]
    return content is None or (isinstance(content, str) and not content.strip())


def _message(given: Any, where: str) -> Any:
    if not isinstance(given, dict):
        return given
    role, content = given.get("role"), given.get("content")
    if role in _TOOL_ROLES:
        raise _unsupported(f"{where}.role")
    for name in sorted(given.keys() - {"role", "content"}):
        # An answer comes back with what it had beside its text, which is nothing.
        if role != "assistant" or given[name] not in (None, []):
            raise _unsupported(f"{where}.{name}")
    if isinstance(role, str):
        role = _ROLES.get(role, role)
    if isinstance(content, list):
        parts = enumerate(content)
        content = "".join(_part(part, f"{where}.content[{place}]") for place, part in parts)
    return {"role": role, "content": content}


def _part(given: Any, where: str) -> str:
    if not isinstance(given, dict) or given.get("type") != "text":
        raise _unsupported(f"{where}.type")
    text = given.get("text")
    if not isinstance(text, str):
        raise Refusal(Code.WRONG_TYPE, "Input should be a text", field=f"{where}.text")
    return text


def _unsupported(field: str) -> Refusal:
    return Refusal(
        Code.UNSUPPORTED_PARAMETER,
        "This is not supported here, or there is no such parameter",
        field=field.encode(errors="replace").decode()[:200],
        remedy="Leave it out.",
    )


def to_completion(job: Job, result: Mapping[str, Any]) -> dict[str, Any]:
    """The `chat.completion` object of a succeeded job."""
    return {
        **head(job, "chat.completion"),
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": one["text"], "refusal": None},
                **ended(one),
            }
            for index, one in enumerate(choices(result))
        ],
        "usage": usage(result),
    }


def head(job: Job, kind: str) -> dict[str, Any]:
    """What a completion and each of its chunks begin with; the tier is that of the job's lane."""
    return {
        "id": openai_ids.shown(Prefix.CHAT_COMPLETION, job.id),
        "object": kind,
        "created": unix(job.created_at),
        "model": job.model,
        "service_tier": TIER_OF_LANE.get(job.lane, "default"),
    }


def choices(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The answers of a job; `choices` of a result is empty where there is just the one."""
    alone = {"text": result["output"], "finish_reason": result["finish_reason"], "logprobs": None}
    found: Sequence[Mapping[str, Any]] = result["choices"] or [alone]
    return found


def ended(choice: Mapping[str, Any]) -> dict[str, Any]:
    """How an answer ended, with its log-probabilities; `ended_by` is ours, where OpenAI has no word."""
    reason, logprobs = FinishReason(choice["finish_reason"]), choice["logprobs"]
    shown = _FINISH_REASON.get(reason, reason)
    return {
        "logprobs": None if logprobs is None else {"content": [_logprob(one) for one in logprobs]},
        "finish_reason": shown.value,
        **({"ended_by": reason.value} if shown is not reason else {}),
    }


def usage(result: Mapping[str, Any]) -> dict[str, Any]:
    """What an answer took in tokens."""
    prompt, output = result["prompt_tokens"], result["output_tokens"]
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": result["cached_tokens"]},
    }


def _logprob(given: Mapping[str, Any]) -> dict[str, Any]:
    top = [_token(token, logprob) for token, logprob in given["top"]]
    return {**_token(given["token"], given["logprob"]), "top_logprobs": top}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode(errors="replace"))}
