"""Which precision a card and a checkpoint allow, and the nearest where they do not."""

import pytest

from jobs.domain.policies import EnginePolicy, Precision
from tests.model_shapes import shape
from workers.planning import precision
from workers.planning.cards import KINDS

AUTO, FP32, BF16, FP16 = Precision.AUTO, Precision.FP32, Precision.BF16, Precision.FP16
FP8, INT8, INT4 = Precision.FP8, Precision.INT8, Precision.INT4


@pytest.mark.parametrize(
    ("asked", "card", "model", "given", "weight_only"),
    [
        (AUTO, "A100-80G", "llama-3.1-8b", BF16, False),
        (AUTO, "T4", "llama-3.1-8b", FP16, False),
        (AUTO, "T4", "gemma-2-9b", FP32, False),
        (AUTO, "L4", "deepseek-v3", FP8, False),
        (AUTO, "T4", "llama-3.1-8b-w8a8", INT8, False),
        (BF16, "A100-40G", "llama-3.1-8b", BF16, False),
        (FP16, "T4", "llama-3.1-8b", FP16, False),
        (FP8, "H100-80G", "llama-3.1-8b", FP8, False),
        (FP8, "L4", "llama-3.1-8b", FP8, False),
        (FP8, "A100-80G", "llama-3.1-8b", FP8, True),
        (FP8, "T4", "llama-3.1-8b", FP8, True),
        (INT8, "T4", "llama-3.1-8b-w8a8", INT8, False),
        (INT8, "T4", "qwen2.5-7b-gptq-int8", INT8, True),
        (INT8, "B200", "qwen2.5-7b-gptq-int8", INT8, True),
        (FP32, "T4", "gemma-2-9b", FP32, False),
    ],
)
def test_what_is_legal(asked: Precision, card: str, model: str, given: Precision, weight_only: bool) -> None:
    verdict = precision.judge(EnginePolicy(precision=asked), KINDS[card].capability, shape(model))
    assert (verdict.refusal, verdict.precision, verdict.weight_only) == (None, given, weight_only)


@pytest.mark.parametrize(
    ("asked", "card", "model", "why", "nearest"),
    [
        (BF16, "T4", "llama-3.1-8b", "needs compute capability 8.0, the card has 7.5", FP16),
        (BF16, "T4", "gemma-2-9b", "needs compute capability 8.0", FP32),
        (FP16, "A100-80G", "gemma-2-9b", "unstable", BF16),
        (INT8, "A100-80G", "llama-3.1-8b", "needs a checkpoint that is stored so", FP8),
        (INT8, "T4", "llama-3.1-8b", "needs a checkpoint that is stored so", FP8),
        (INT8, "H100-80G", "mixtral-8x7b", "needs a checkpoint that is stored so", FP8),
        (INT4, "T4", "llama-3.1-8b", "needs a checkpoint that is stored so", FP8),
        (INT8, "B200", "llama-3.1-8b-w8a8", "ends below compute capability 10.0", FP8),
        (FP8, "H100-80G", "llama-3.1-8b-w8a8", "is stored as compressed-tensors, 8 bits", INT8),
        (BF16, "H100-80G", "deepseek-v3", "is stored as fp8, 8 bits", FP8),
    ],
)
def test_what_is_refused(asked: Precision, card: str, model: str, why: str, nearest: Precision) -> None:
    verdict = precision.judge(EnginePolicy(precision=asked), KINDS[card].capability, shape(model))
    assert verdict.refusal is not None
    assert why in verdict.refusal
    assert verdict.nearest is nearest


@pytest.mark.parametrize(
    ("asked", "capability", "nearest"), [(FP8, 70, FP16), (INT4, 70, FP16), (FP16, 52, None)]
)
def test_old_cards_are_judged_without_a_model(
    asked: Precision, capability: int, nearest: Precision | None
) -> None:
    verdict = precision.judge(EnginePolicy(precision=asked), capability)
    assert verdict.refusal is not None
    assert verdict.nearest is nearest


def test_experts_in_int8_make_no_int8_model() -> None:
    """vLLM 0.32's online INT8 leaves the linear layers as they are, and `auto` says so."""
    policy = EnginePolicy(precision=INT8, quantization="int8_per_channel_weight_only")
    verdict = precision.judge(policy, 90, shape("mixtral-8x7b"))
    assert verdict.refusal is not None
    assert "the experts alone" in verdict.refusal
    honest = EnginePolicy(quantization="int8_per_channel_weight_only")
    assert precision.judge(honest, 90, shape("mixtral-8x7b")).precision is BF16


def test_a_named_quantisation_says_what_auto_is() -> None:
    policy = EnginePolicy(quantization="fp8_per_block")
    assert precision.judge(policy, 90, shape("llama-3.1-8b")).precision is FP8


def test_per_channel_fp8_wants_native_fp8() -> None:
    policy = EnginePolicy(precision=FP8, quantization="fp8_per_channel")
    assert precision.judge(policy, 89, shape("llama-3.1-8b")).refusal is None
    assert "fp8_per_tensor" in (precision.judge(policy, 80, shape("llama-3.1-8b")).refusal or "")


@pytest.mark.parametrize(
    ("cache", "card", "model", "legal"),
    [
        ("auto", "T4", "llama-3.1-8b", True),
        ("fp8", "T4", "llama-3.1-8b", False),
        ("fp8", "A100-80G", "llama-3.1-8b", True),
        ("fp8_e4m3", "A100-80G", "deepseek-v2-lite", False),
        ("fp8", "H100-80G", "deepseek-v2-lite", True),
        ("bfloat16", "T4", "llama-3.1-8b", False),
    ],
)
def test_cache_formats(cache: str, card: str, model: str, legal: bool) -> None:
    refusal = precision.cache_refusal(cache, KINDS[card].capability, shape(model))
    assert (refusal is None) == legal
