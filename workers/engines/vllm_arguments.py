"""A lane's engine policy as the keyword arguments of vLLM 0.32's `AsyncEngineArgs`."""

from collections.abc import Mapping
from typing import Any

from jobs.domain.policies import EnginePolicy, Precision, SpeculationMethod, SpeculationPolicy
from workers.engines.registry import EngineConfig
from workers.planning import memory
from workers.planning.memory import GIB
from workers.planning.model_shape import ModelShape
from workers.planning.precision import ONLINE_FP8

# `fp8` is for checkpoints alone, and `fp8_per_channel` refuses what has no native FP8
# (model_executor/layers/quantization/fp8.py and online/fp8.py); this one runs from 7.5 on.
_ONLINE_FP8 = "fp8_per_tensor"
_ONLINE = {Precision.FP8: _ONLINE_FP8, Precision.INT8: "int8_per_channel_weight_only"}  # INT8: experts alone
_AS_STORED = (Precision.AUTO, Precision.BF16, Precision.FP16)
_WIDE = "bf16, fp16 or auto for what stays as it is"
_DTYPES = {Precision.FP32: "float32", Precision.BF16: "bfloat16", Precision.FP16: "float16"}
_NGRAM_TOKENS = (2, 4)  # the shortest and the longest run of tokens that is looked up in the prompt
_CPU_CACHE_GIB = 1.0  # vLLM would take a share of the machine's memory, once for each lane


class MixRefused(ValueError):
    """The mix of precisions by layers is none that vLLM takes; the message says which it takes."""


def arguments(
    config: EngineConfig, *, device: str = "cuda", shape: ModelShape | None = None
) -> dict[str, Any]:
    """The arguments for `config` on a `device` of that type, `config.options` laid over them.

    `shape` is the model's, where it is known: a checkpoint that is stored quantised is then taken as it is,
    and no more tokens are asked for than the model has positions. Without it, a checkpoint that the policy
    names counts as quantised. On a CPU, which runs no online FP8, the checkpoint is taken as it is.
    Raises `MixRefused`.
    """
    policy = config.policy
    sequences = max(policy.sequences, config.slots)
    longest = min(config.max_model_len, shape.max_model_len) if shape else config.max_model_len
    # Without chunks a prompt must go through in one step.
    batched = max(policy.batched_tokens, sequences, 0 if policy.chunked_prefill else longest)
    given: dict[str, Any] = {
        "model": policy.checkpoint or str(config.model_path or config.model),
        "served_model_name": config.model,
        "dtype": _DTYPES.get(policy.precision, "auto"),
        "max_model_len": longest,
        "max_num_seqs": sequences,
        "max_num_batched_tokens": batched,
        "enable_chunked_prefill": policy.chunked_prefill,
        "long_prefill_token_threshold": min(policy.long_prefill_tokens or 0, longest),
        "scheduling_policy": str(policy.scheduling),
        "enable_prefix_caching": policy.prefix_caching,
        "kv_cache_dtype": policy.kv_cache_dtype,
        "tensor_parallel_size": policy.tensor_parallel,
        "enforce_eager": policy.enforce_eager,
    }
    stored = shape.stored is not None if shape else policy.checkpoint is not None
    given |= _cache(policy, device, shape, longest)
    given |= _quantization(policy, device, stored=stored)
    if policy.speculation:
        given["speculative_config"] = _speculation(policy.speculation, sequences)
    return given | dict(config.options)


def _cache(policy: EnginePolicy, device: str, shape: ModelShape | None, longest: int) -> dict[str, Any]:
    """Both on a card, since vLLM refuses to start where less than its share is free."""
    if device == "cpu":
        gib = policy.kv_cache_gib or _CPU_CACHE_GIB
        least = memory.sequence_bytes(shape, policy, longest) if shape else 0
        return {"kv_cache_memory_bytes": max(int(gib * GIB), least)}
    cache = {} if policy.kv_cache_gib is None else {"kv_cache_memory_bytes": int(policy.kv_cache_gib * GIB)}
    return {"gpu_memory_utilization": policy.memory_share} | cache


def _quantization(policy: EnginePolicy, device: str, *, stored: bool) -> dict[str, Any]:
    """What is quantised as it is loaded; a quantised checkpoint says itself what it is."""
    if device == "cpu":
        return {"quantization": policy.quantization} if policy.quantization else {}
    base = policy.quantization or (_ONLINE_FP8 if policy.precision is Precision.FP8 and not stored else None)
    narrow = {pattern: part for pattern, part in policy.layers.items() if part not in _AS_STORED}
    if base in ONLINE_FP8:
        return _all_but(base, policy, narrow)
    named = {"quantization": base} if base else {}
    if not narrow:
        return named
    # Beside a quantised checkpoint vLLM quantises only what that leaves as it is.
    targets = {pattern: _online(pattern, part) for pattern, part in narrow.items()}
    online = {} if base or stored else {"quantization": "online"}
    return named | online | {"quantization_config": {"targets": targets}}


def _all_but(base: str, policy: EnginePolicy, narrow: Mapping[str, Precision]) -> dict[str, Any]:
    for pattern, part in narrow.items():
        if part is not Precision.FP8:
            raise MixRefused(
                f"layers {pattern!r}: {part} beside {base} is no mix that vLLM takes: name {_WIDE}"
            )
    ignored = [pattern for pattern in policy.layers if pattern not in narrow]
    return {"quantization": base} | ({"quantization_config": {"ignore": ignored}} if ignored else {})


def _online(pattern: str, part: Precision) -> str:
    if part not in _ONLINE:
        raise MixRefused(
            f"layers {pattern!r}: vLLM makes no {part} of layers as it loads them:"
            f" name fp8, int8 for experts, or {_WIDE}"
        )
    return _ONLINE[part]


def _speculation(policy: SpeculationPolicy, sequences: int) -> dict[str, Any]:
    """`max_batch` by vLLM's schedule of candidates by batch size, in inclusive ranges that begin at 1."""
    given: dict[str, Any] = {"method": str(policy.method), "num_speculative_tokens": policy.tokens}
    if policy.method is SpeculationMethod.NGRAM:
        given |= dict(zip(("prompt_lookup_min", "prompt_lookup_max"), _NGRAM_TOKENS, strict=True))
    else:
        given["model"] = policy.draft_model
    if policy.max_batch is not None and policy.max_batch < sequences:
        given["num_speculative_tokens_per_batch_size"] = [
            (1, policy.max_batch, policy.tokens),
            (policy.max_batch + 1, sequences, 0),
        ]
    return given
