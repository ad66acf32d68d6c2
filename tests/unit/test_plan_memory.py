"""Memory by hand: weights, KV cache, activations, graphs."""

from dataclasses import replace

import pytest

from jobs.domain.policies import EnginePolicy, Precision, SpeculationPolicy
from tests.model_shapes import shape
from workers.planning import memory
from workers.planning.checkpoint import StoredFormat
from workers.planning.memory import GIB

A100 = 80 * GIB
LLAMA_LINEAR = 32 * (4_096 * 6_144 + 4_096 * 4_096 + 3 * 4_096 * 14_336)
LLAMA_REST = 2 * 128_256 * 4_096 + 65 * 4_096


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        (Precision.BF16, 2 * (LLAMA_LINEAR + LLAMA_REST)),
        (Precision.FP32, 4 * (LLAMA_LINEAR + LLAMA_REST)),
        (Precision.FP8, LLAMA_LINEAR + 2 * LLAMA_REST),
        (Precision.INT4, 0.53 * LLAMA_LINEAR + 2 * LLAMA_REST),
    ],
)
def test_linear_layers_are_quantised_and_embeddings_are_not(precision: Precision, expected: float) -> None:
    assert memory.weight_bytes(shape("llama-3.1-8b"), precision) == pytest.approx(expected, abs=1)


def test_a_stored_format_counts_as_it_is_stored() -> None:
    """DeepSeek-V3's checkpoint is 689 GB with 14 GB of a module that vLLM leaves out."""
    assert memory.weight_bytes(shape("deepseek-v3"), Precision.FP8) == pytest.approx(689e9 - 14e9, rel=0.02)


def test_experts_may_be_stored_alone() -> None:
    model = shape("mixtral-8x7b")
    stored = replace(model, stored=StoredFormat("mxfp4", 4.25, None, experts_only=True))
    parts = model.parameters
    plain = parts.total - parts.experts
    expected = 2 * plain + parts.experts * 4.25 / 8 * 1.02
    assert memory.weight_bytes(stored, Precision.BF16) == pytest.approx(expected, abs=1)


def test_tensor_parallel_splits_weights_and_heads_but_no_latent() -> None:
    two = EnginePolicy(tensor_parallel=2)
    llama, deepseek = shape("llama-3.1-70b"), shape("deepseek-v3")
    whole = memory.weight_bytes(llama, Precision.BF16)
    assert memory.weight_bytes(llama, Precision.BF16, 2) == pytest.approx(whole / 2, rel=0.001)
    assert memory.token_bytes(llama, two) == memory.token_bytes(llama, EnginePolicy()) / 2
    assert memory.token_bytes(llama, EnginePolicy(tensor_parallel=16)) == 2 * 128 * 2  # a head at least
    assert memory.token_bytes(deepseek, two) == memory.token_bytes(deepseek, EnginePolicy())


@pytest.mark.parametrize(("cache", "bytes_"), [("auto", 2), ("fp8", 1), ("fp8_e4m3", 1), ("bfloat16", 2)])
def test_the_cache_s_format_decides_its_size(cache: str, bytes_: int) -> None:
    policy = EnginePolicy(kv_cache_dtype=cache)
    assert memory.token_bytes(shape("llama-3.1-8b"), policy) == 2 * 8 * 128 * bytes_


def test_a_sequence_is_kept_in_whole_blocks() -> None:
    assert memory.sequence_bytes(shape("llama-3.1-8b"), EnginePolicy(), 17) == 32 * 131_072


def test_windowed_layers_keep_their_window() -> None:
    """Gemma-2: 21 layers keep all of 8,192 tokens, 21 keep 4,095, the step's 1,024, and a block."""
    model, policy = shape("gemma-2-9b"), EnginePolicy(batched_tokens=1_024)
    kept = 21 * 8_192 + 21 * (320 * 16 + 16)
    assert memory.sequence_bytes(model, policy, 8_192) == kept * 2 * 8 * 256 * 2


def test_the_peak_of_a_step_is_what_vllm_measured() -> None:
    """1.26 GiB for Llama-3-8B with 256 sequences and 8,192 tokens (vLLM's pull request 10511)."""
    policy = EnginePolicy(256, batched_tokens=8_192)
    needed = memory.estimate(shape("llama-3.1-8b"), policy, Precision.BF16, 8_192, A100)
    assert needed.activations / GIB == pytest.approx(1.26, rel=0.05)


def test_the_cache_gets_what_remains_of_the_cap() -> None:
    needed = memory.estimate(shape("llama-3.1-8b"), EnginePolicy(), Precision.BF16, 4_096, A100)
    assert needed.cap == 0.85 * A100
    assert needed.used == needed.cap
    assert needed.sequences == needed.cache // (4_096 * 131_072)


def test_a_cache_set_by_hand_is_that() -> None:
    policy = EnginePolicy(kv_cache_gib=4)
    needed = memory.estimate(shape("llama-3.1-8b"), policy, Precision.BF16, 4_096, A100)
    assert needed.cache == 4 * GIB
    assert needed.sequences == 8


def test_a_draft_model_has_weights_and_a_cache_of_its_own() -> None:
    given = (shape("llama-3.1-70b"), EnginePolicy(), Precision.BF16, 4_096, A100)
    alone, drafted = memory.estimate(*given), memory.estimate(*given, shape("llama-3.1-8b"))
    assert drafted.weights - alone.weights == memory.weight_bytes(shape("llama-3.1-8b"), Precision.BF16)
    assert drafted.sequence - alone.sequence == 4_096 * 131_072


def test_graphs_cost_nothing_where_none_are_captured() -> None:
    model = shape("llama-3.1-8b")
    eager = memory.estimate(model, EnginePolicy(enforce_eager=True), Precision.BF16, 4_096, A100)
    few, many = (
        memory.estimate(model, EnginePolicy(sequences, speculation=speculation), Precision.BF16, 4_096, A100)
        for sequences, speculation in ((8, None), (8, SpeculationPolicy(tokens=2)))
    )
    assert eager.graphs == 0 < few.graphs < many.graphs


def test_a_mix_by_layers_counts_as_its_widest() -> None:
    mixed = EnginePolicy(precision=Precision.FP8, layers={"*down_proj*": Precision.BF16})
    assert memory.widest(Precision.FP8, mixed) is Precision.BF16
    assert memory.widest(Precision.FP8, EnginePolicy()) is Precision.FP8
