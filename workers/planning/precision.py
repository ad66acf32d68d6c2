"""What precision a card and a checkpoint allow: the verdict, its reason, and the nearest that is legal."""

from dataclasses import dataclass

from jobs.domain.policies import EnginePolicy, Precision
from workers.planning.cards import capability_title
from workers.planning.model_shape import ModelShape

# vLLM 0.32 where not said otherwise. Compute capability times ten.
NATIVE_FP8 = 89  # platforms/cuda.py, supports_fp8; below it Marlin widens the weights as they are used
INT8_ENDS = 100  # its page on INT8 W8A8: no kernels from Blackwell on
LEAST_CAPABILITY = {
    Precision.FP32: 60,  # platforms/cuda.py, supported_dtypes
    Precision.FP16: 60,
    Precision.BF16: 80,
    Precision.FP8: 75,  # OnlineQuantizationConfig and Fp8Config.get_min_capability()
    Precision.INT8: 75,  # CompressedTensorsW8A8Int8.get_min_capability(); GPTQ's Marlin kernel
    Precision.INT4: 75,  # AutoAWQConfig and MarlinLinearKernel.get_min_capability()
}
FP8_CACHE = 89  # the Triton and MLA backends (v1/attention/backends/triton_attn.py)
FP8_CACHE_BY_FLASHINFER = 80  # supports_compute_capability of its backend

WIDE = (Precision.FP32, Precision.BF16, Precision.FP16)
ONLINE_FP8 = ("fp8_per_tensor", "fp8_per_block", "fp8_per_channel")  # vLLM's names of its online quantisation
EXPERTS_ONLY = ("int8_per_channel_weight_only", "nvfp4_per_token", "experts_int8")
_UNSTABLE_IN_FP16 = ("gemma2", "gemma3", "glm4")  # config/model.py, _FLOAT16_NOT_SUPPORTED_MODELS
_NEAREST = {  # narrow ones are replaced by what needs as little memory, then by what computes as fast
    Precision.INT4: (Precision.FP8, Precision.BF16, Precision.FP16, Precision.FP32),
    Precision.INT8: (Precision.FP8, Precision.BF16, Precision.FP16, Precision.FP32),
    Precision.FP8: (Precision.BF16, Precision.FP16, Precision.FP32),
    Precision.BF16: (Precision.FP16, Precision.FP32),
    Precision.FP16: (Precision.BF16, Precision.FP32),
    Precision.FP32: (),
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the linear layers will have: `precision`, or where that cannot be, why, and the nearest legal.

    `AUTO` stands for a stored format that is none of Trilane's. `weight_only`: the weights are stored so,
    and widened as they are used, which saves memory but no arithmetic.
    """

    precision: Precision
    weight_only: bool = False
    refusal: str | None = None
    nearest: Precision | None = None

    @property
    def title(self) -> str:
        """`fp8 (weight-only)`."""
        return f"{self.precision} (weight-only)" if self.weight_only else str(self.precision)


def judge(policy: EnginePolicy, capability: int, shape: ModelShape | None = None) -> Verdict:
    """Whether a card of this compute capability can run the policy's precision on this model.

    Without a shape only the card is judged.
    """
    precision = effective(policy, capability, shape)
    refusal = (
        _by_card(precision, capability, shape)
        or _by_kernel(policy, capability)
        or checkpoint_refusal(policy, precision, shape)
    )
    weight_only = _weight_only(precision, capability, shape)
    if refusal is None:
        return Verdict(precision, weight_only)
    return Verdict(precision, weight_only, refusal, _nearest(precision, capability, shape))


def effective(policy: EnginePolicy, capability: int, shape: ModelShape | None) -> Precision:
    """What `auto` comes to: the stored format, else the checkpoint's own width, FP16 below 8.0."""
    if policy.precision is not Precision.AUTO:
        return policy.precision
    if policy.quantization in ONLINE_FP8:
        return Precision.FP8
    return _stored(capability, shape) if shape else Precision.AUTO


def _stored(capability: int, shape: ModelShape) -> Precision:
    if shape.stored and not shape.stored.experts_only:
        return shape.stored.precision or Precision.AUTO
    if shape.dtype == "float16" and not shape.model_type.startswith(_UNSTABLE_IN_FP16):
        return Precision.FP16
    if capability >= LEAST_CAPABILITY[Precision.BF16]:
        return Precision.BF16
    return Precision.FP32 if shape.model_type.startswith(_UNSTABLE_IN_FP16) else Precision.FP16


def cache_refusal(kv_cache_dtype: str, capability: int, shape: ModelShape | None) -> str | None:
    """Why a card cannot hold its KV cache so; None where it can."""
    least = FP8_CACHE if shape is not None and shape.latent else FP8_CACHE_BY_FLASHINFER
    if kv_cache_dtype == "bfloat16":
        least = LEAST_CAPABILITY[Precision.BF16]
    elif not kv_cache_dtype.startswith("fp8"):
        return None
    if capability >= least:
        return None
    return (
        f"kv_cache_dtype {kv_cache_dtype} needs compute capability {capability_title(least)},"
        f" the card has {capability_title(capability)}: set it to auto"
    )


def _by_card(precision: Precision, capability: int, shape: ModelShape | None) -> str | None:
    least = LEAST_CAPABILITY.get(precision, 0)
    if capability < least:
        return (
            f"{precision} needs compute capability {capability_title(least)},"
            f" the card has {capability_title(capability)}"
        )
    if shape is None:
        return None
    if precision is Precision.FP16 and shape.model_type.startswith(_UNSTABLE_IN_FP16):
        return f"vLLM refuses fp16 for {shape.model_type}, which is unstable in it"
    activations = shape.stored is not None and shape.stored.activations
    if precision is Precision.INT8 and activations and capability >= INT8_ENDS:
        return (
            f"int8 with int8 activations ends below compute capability {capability_title(INT8_ENDS)},"
            f" the card has {capability_title(capability)}"
        )
    return None


def _by_kernel(policy: EnginePolicy, capability: int) -> str | None:
    if policy.quantization == "fp8_per_channel" and capability < NATIVE_FP8:
        return "vLLM has fp8_per_channel with native FP8 alone: take fp8_per_tensor for the quantization"
    return None


def checkpoint_refusal(policy: EnginePolicy, precision: Precision, shape: ModelShape | None) -> str | None:
    """Why no card can run this checkpoint so; None where one can."""
    if precision is Precision.INT8 and policy.quantization in EXPERTS_ONLY:
        return f"{policy.quantization} covers the experts alone: the linear layers would stay as they are"
    if shape is None:
        return None
    stored = shape.stored if shape.stored and not shape.stored.experts_only else None
    if stored and precision is not (stored.precision or Precision.AUTO):
        return f"the checkpoint is stored as {stored.title}, which vLLM takes as it is: {precision} cannot be"
    if stored is None and precision is Precision.INT8:
        return (
            "int8 needs a checkpoint that is stored so (engine.checkpoint: W8A8 compressed-tensors, or"
            " 8-bit GPTQ), and this one is not"
        )
    if stored is None and precision is Precision.INT4:
        return (
            "int4 needs a checkpoint that is stored so (engine.checkpoint: AWQ, GPTQ or"
            " compressed-tensors), and this one is not"
        )
    return None


def _weight_only(precision: Precision, capability: int, shape: ModelShape | None) -> bool:
    if precision is Precision.FP8:
        return capability < NATIVE_FP8
    if precision not in (Precision.INT8, Precision.INT4) or shape is None or shape.stored is None:
        return False
    return not shape.stored.activations


def _nearest(precision: Precision, capability: int, shape: ModelShape | None) -> Precision | None:
    stored = shape.stored.precision if shape and shape.stored and not shape.stored.experts_only else None
    others = _NEAREST.get(precision, ())
    candidates = (stored, *others) if stored else others
    for candidate in candidates:
        if candidate is not precision and _by_card(candidate, capability, shape) is None:
            return candidate
    return None
