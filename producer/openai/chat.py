"""Chat completions: what a body of OpenAI's asks, and how a job's answer is shown as one."""

from collections.abc import Mapping
from typing import Any

from jobs.domain.jobs import Job
from jobs.domain.lanes import Kind
from jobs.domain.outcomes import FinishReason
from producer.openai import ids
from producer.openai.files import unix
from producer.openai.ids import Prefix
from producer.openai.tiers import TIER_OF_LANE
from producer.refusals import Code, Refusal
from producer.request import Request

# Fields that mean the same here and there.
_SAME = (
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
# Values that ask for nothing.
_NEUTRAL: Mapping[str, Any] = {"store": False, "modalities": ["text"]}
_ROLES = {"developer": "system"}
_FINISH_REASON = {FinishReason.REPETITION: FinishReason.LENGTH}


def to_request(body: Mapping[str, Any]) -> Request:
    """The request that a body makes; its lane is set elsewhere. Raises `Refusal` or `ValidationError`."""
    for name, value in body.items():
        if name not in _SAME and name not in _ELSEWHERE and (value is None or _NEUTRAL.get(name) != value):
            raise _unsupported(name)
    fields = {name: body[name] for name in _SAME if body.get(name) is not None}
    if "messages" in body:
        fields["messages"] = _messages(body["messages"])
    # Windows are Trilane's own way with a long document: here a prompt that is too long is refused.
    return Request.model_validate({"kind": Kind.REPORT, "windows": False, **fields})


def _messages(given: Any) -> Any:
    if not isinstance(given, list):
        return given
    return [_message(message, f"messages[{place}]") for place, message in enumerate(given)]


def _message(given: Any, where: str) -> Any:
    if not isinstance(given, dict):
        return given
    message = dict(given)
    if message.get("role") in ("tool", "function"):
        raise _unsupported(f"{where}.role")
    for name in message.keys() - {"role", "content"}:
        raise _unsupported(f"{where}.{name}")
    message["role"] = _ROLES.get(message.get("role", ""), message.get("role"))
    if isinstance(message.get("content"), list):
        parts = enumerate(message["content"])
        message["content"] = "".join(_part(part, f"{where}.content[{place}]") for place, part in parts)
    return message


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
        field=field[:200],
        remedy="Leave it out.",
    )


def to_completion(job: Job, result: Mapping[str, Any]) -> dict[str, Any]:
    """The `chat.completion` object of a succeeded job."""
    alone = {"text": result["output"], "finish_reason": result["finish_reason"], "logprobs": None}
    return {
        "id": ids.shown(Prefix.CHAT_COMPLETION, job.id),
        "object": "chat.completion",
        "created": unix(job.created_at),
        "model": job.model,
        "choices": [_choice(index, one) for index, one in enumerate(result["choices"] or [alone])],
        "usage": usage(result),
        "service_tier": TIER_OF_LANE.get(job.lane, "default"),
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


def _choice(index: int, choice: Mapping[str, Any]) -> dict[str, Any]:
    reason = FinishReason(choice["finish_reason"])
    logprobs = choice["logprobs"]
    return {
        "index": index,
        "message": {"role": "assistant", "content": choice["text"], "refusal": None},
        "logprobs": None if logprobs is None else {"content": [_logprob(one) for one in logprobs]},
        "finish_reason": _FINISH_REASON.get(reason, reason).value,
    }


def _logprob(given: Mapping[str, Any]) -> dict[str, Any]:
    top = [_token(token, logprob) for token, logprob in given["top"]]
    return {**_token(given["token"], given["logprob"]), "top_logprobs": top}


def _token(token: str, logprob: float) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode())}
