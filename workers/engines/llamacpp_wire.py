"""What is said to llama.cpp and what it says back, as JSON."""

import json
from typing import Any

from jobs.domain.outcomes import Outcome, Rejected, Retryable, TokenLogprob, Usage
from jobs.domain.requests import GenerationRequest, Sampling


def body(request: GenerationRequest) -> bytes:
    """The request as llama.cpp's chat completions take it. Raises `ValueError` for what no JSON can carry."""
    sampling = request.sampling
    given: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # llama.cpp keeps 32 bits and takes the highest value for "choose one at random".
        "seed": None if sampling.seed is None else sampling.seed % 0xFFFFFFFF,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "logit_bias": sampling.logit_bias,
        "response_format": sampling.response_format,
        "logprobs": sampling.logprobs,
        # With none llama.cpp would leave out the chosen token's own as well.
        "top_logprobs": max(sampling.top_logprobs or 0, 1) if sampling.logprobs else None,
    }
    body = {name: value for name, value in given.items() if value is not None} | {
        "messages": [
            {"role": message.role.value, "content": message.content} for message in request.messages
        ],
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_progress": True,  # without it a prefill cannot be closed
        "timings_per_token": True,  # for the tokens that each chunk stands for
    }
    return json.dumps(body, ensure_ascii=False, allow_nan=False).encode()


def logprob(told: dict[str, Any], top: int) -> TokenLogprob:
    """One token's log-probability, with at most `top` of the likeliest beside it."""
    likeliest = [(_token(one), one["logprob"]) for one in told["top_logprobs"][:top]]
    return TokenLogprob(_token(told), told["logprob"], tuple(likeliest))


def _token(told: dict[str, Any]) -> str:
    return bytes(told["bytes"]).decode(errors="replace")


def raised(error: Exception, sampling: Sampling) -> Outcome:
    """What an exception out of llama.cpp means for the attempt."""
    if sampling.response_format and "JSON schema" in str(error):
        return Rejected(
            "invalid_request", f"response_format: {str(error).rpartition('JSON schema')[2]}"[:200]
        )
    return Retryable("engine_error", f"llama.cpp failed: {error}"[:200])


def failure(error: dict[str, Any]) -> Outcome:
    """What an error event of llama.cpp means for the attempt."""
    if error.get("type") == "exceed_context_size_error":
        prompt_tokens, limit = error["n_prompt_tokens"], error["n_ctx"]
        return Rejected(
            "prompt_too_long",
            f"the prompt is {prompt_tokens} tokens long, the context holds {limit} with the answer",
            Usage(prompt_tokens=prompt_tokens),
        )
    if error.get("type") == "invalid_request_error":
        return Rejected("invalid_request", str(error.get("message"))[:200])
    return Retryable("engine_error", str(error.get("message"))[:200])
