"""The sampling parameters in vLLM's words; nothing of vLLM is imported here."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from jobs.domain.outcomes import Rejected
from jobs.domain.requests import Sampling

# `windows` concerns the lane, not its engine.
PARAMETERS = frozenset(field.name for field in fields(Sampling)) - {"windows"}
# What vLLM refuses as long as it speculates.
NOT_SPECULATING = frozenset({"logit_bias", "min_p"})
# A text goes in circles when 4 to 32 tokens come four times in a row: shorter ones do so in tables and rules.
REPETITION = {"min_pattern_size": 4, "max_pattern_size": 32, "min_count": 4}

_SAME_NAME = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty")
_SEEDS = 2**63  # a seed beyond this would end vLLM's process


def refusal(sampling: Sampling, parameters: frozenset[str]) -> Rejected | None:
    """What to answer to a request that uses what this engine does not honour."""
    for name in sorted(PARAMETERS - parameters):
        if getattr(sampling, name):
            message = f"{name} does not go with speculative decoding, which this engine uses"
            return Rejected("unsupported_parameter", message)
    return None


def keywords(sampling: Sampling, defaults: Mapping[str, Any], most_tokens: int) -> dict[str, Any]:
    """Keyword arguments of `SamplingParams`; `structured_outputs` holds those of `StructuredOutputsParams`.

    `defaults` are the model's own and count where the request gives nothing; the answer gets at most
    `most_tokens`. Raises `ValueError` naming the parameter that is wrong.
    """
    given: dict[str, Any] = {
        name: value for name in _SAME_NAME if (value := getattr(sampling, name)) is not None
    }
    return {
        **defaults,
        **given,
        "max_tokens": min(sampling.max_tokens, most_tokens),
        "seed": None if sampling.seed is None else sampling.seed % _SEEDS,
        "stop": _texts("stop", sampling.stop),
        "bad_words": _texts("bad_words", sampling.bad_words),
        "n": sampling.n,
        "logprobs": (sampling.top_logprobs or 0) if sampling.logprobs else None,
        "logit_bias": _biases(sampling.logit_bias) if sampling.logit_bias else None,
        "structured_outputs": _structure(sampling.response_format) if sampling.response_format else None,
    }


def invalid(error: BaseException, sampling: Sampling) -> Rejected:
    """What to answer where vLLM, or this module, finds a parameter wrong; vLLM often tells its name apart."""
    message = str(error.args[0]) if error.args else type(error).__name__
    name = getattr(error, "parameter", None)
    if name is None and sampling.response_format and message.split(maxsplit=1)[0] not in PARAMETERS:
        name = "response_format"
    return Rejected("invalid_request", (f"{name}: {message}" if name else message)[:200])


def _texts(name: str, texts: tuple[str, ...]) -> list[str]:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name}: not valid Unicode") from None
    return list(texts)


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    try:
        biases = {int(token): float(bias) for token, bias in given.items()}
    except (TypeError, ValueError):
        raise ValueError("logit_bias: token ids and numbers are wanted") from None
    if not all(math.isfinite(bias) for bias in biases.values()):
        raise ValueError("logit_bias: the numbers must be finite")
    return biases


def _structure(response_format: Mapping[str, Any]) -> dict[str, Any] | None:
    match response_format:
        case {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return {"json_object": True}
        case {"type": "json_schema", "json_schema": {"schema": Mapping() as schema}}:
            return {"json": dict(schema)}
    raise ValueError("response_format: give type text, json_object, or json_schema with a schema")
