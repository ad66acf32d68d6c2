"""The precision that a loaded model's linear layers have, by vLLM's own configuration of it."""

from collections.abc import Mapping
from typing import Any

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
# Formats of the mixture-of-experts layers alone: the linear layers keep the model's own type.
_EXPERTS_ONLY = frozenset({"int8_per_channel_weight_only", "experts_int8", "nvfp4_per_token", "moe_wna16"})
_TYPES = {"float": "fp", "int": "int"}


def linear_precision(model_config: Any) -> str:
    """Such as `bf16`, `fp8` or `int8`; `bf16+fp8` where layers differ; a format unknown here by vLLM's name.

    `model_config` is vLLM's `ModelConfig`, after the engine's start.
    """
    dtype = str(model_config.dtype).removeprefix("torch.")
    own = _DTYPES.get(dtype, dtype)
    method = model_config.quantization
    if method is None or method in _EXPERTS_ONLY:
        return own
    online = model_config.quantization_config
    if online is not None and getattr(online, "targets", None):
        return _joined({own, *(_online(shorthand, own) for shorthand in online.targets.values())})
    if online is not None and getattr(online, "linear", None):
        return _online(str(online.linear), own)
    if method == "online":
        return own
    checkpoint = getattr(model_config.hf_config, "quantization_config", None) or {}
    return _of_checkpoint(method, checkpoint)


def _online(shorthand: str, own: str) -> str:
    if shorthand in _EXPERTS_ONLY:
        return own
    return next((name for name in ("fp8", "fp4", "int8", "int4") if name in shorthand), shorthand)


def _of_checkpoint(method: str, checkpoint: Mapping[str, Any]) -> str:
    if groups := checkpoint.get("config_groups"):
        weights = [group["weights"] for group in groups.values() if group.get("weights")]
        return _joined({f"{_TYPES.get(w.get('type', 'int'), 'int')}{w['num_bits']}" for w in weights})
    if bits := checkpoint.get("bits") or checkpoint.get("w_bit"):
        return f"int{bits}"
    return "fp8" if "fp8" in method or method == "modelopt" else method


def _joined(names: set[str]) -> str:
    return "+".join(sorted(names))
