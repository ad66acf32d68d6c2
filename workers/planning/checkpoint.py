"""The precision a checkpoint is stored in, as the `quantization_config` of its config.json tells it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jobs.domain.policies import Precision

_BY_BITS = {8: Precision.INT8, 4: Precision.INT4}


@dataclass(frozen=True, slots=True)
class StoredFormat:
    """A quantised checkpoint: vLLM's name of its method, and the bits of each weight it quantises.

    `precision` is what the linear layers have: None where only the experts are quantised, or where the
    format is none of Trilane's precisions. `activations` tells that INT8 activations go with INT8 weights
    (W8A8); without, the weights are widened as they are used (weight-only).
    """

    method: str
    bits: float
    precision: Precision | None
    activations: bool = False
    experts_only: bool = False

    @property
    def title(self) -> str:
        """The format as an operator knows it: `compressed-tensors, 8 bits`."""
        return f"{self.method}, {self.bits:g} bits"


def stored_format(config: Mapping[str, Any]) -> StoredFormat | None:
    """The format of a config.json's checkpoint; None where its weights are not quantised.

    The keys are those of the libraries that write them: compressed-tensors (`config_groups`), GPTQ and AWQ
    (`bits`), FP8 as DeepSeek and Qwen store it (`quant_method = "fp8"`), MXFP4 as gpt-oss stores its experts.
    """
    quantization = config.get("quantization_config")
    if not isinstance(quantization, Mapping):
        return None
    method = str(quantization.get("quant_method", "unknown")).lower()
    if method == "compressed-tensors":
        return _compressed_tensors(method, quantization)
    if method == "fp8" or "fp8" in str(quantization.get("quant_algo", "")).lower():
        return StoredFormat(method, 8, Precision.FP8, activations=True)
    if method == "mxfp4":  # 4 bits, and one scale of 8 bits for 32 of them
        return StoredFormat(method, 4.25, None, experts_only=True)
    bits = quantization.get("bits") or quantization.get("w_bit")
    if isinstance(bits, int):
        return StoredFormat(method, bits, _BY_BITS.get(bits))
    return StoredFormat(method, 16, None)  # unknown: counted as if it saved nothing


def _compressed_tensors(method: str, quantization: Mapping[str, Any]) -> StoredFormat:
    """The widest of the groups: a mix is no more precise than it is reported, and no smaller."""
    groups = [group for group in quantization.get("config_groups", {}).values() if group.get("weights")]
    if not groups:
        return StoredFormat(method, 16, None)
    widest = max(groups, key=lambda group: int(group["weights"].get("num_bits", 16)))
    bits, kind = int(widest["weights"].get("num_bits", 16)), widest["weights"].get("type", "int")
    precision = Precision.FP8 if (bits, kind) == (8, "float") else None
    if kind == "int":
        precision = _BY_BITS.get(bits)
    return StoredFormat(method, bits, precision, activations=bool(widest.get("input_activations")))
