"""Shapes of public models against their published sizes and KV widths computed by hand."""

import json
from pathlib import Path

import pytest

from jobs.domain.policies import EnginePolicy, Precision
from tests.model_shapes import config, shape
from workers.planning import checkpoint, memory, model_shape
from workers.planning.model_shape import UnknownShape

# Published parameters, and the bytes that one token keeps in all layers at 16 bits:
# 2 x layers x KV heads x head width x 2, or layers x (latent + rotary width) x 2.
PUBLISHED = {
    "smollm2-135m": (134.5e6, 2 * 30 * 3 * 64 * 2),
    "llama-3.1-8b": (8.03e9, 131_072),
    "llama-3.1-70b": (70.6e9, 327_680),
    "qwen2.5-7b": (7.62e9, 57_344),
    "mixtral-8x7b": (46.7e9, 131_072),
    "deepseek-v2-lite": (15.7e9, 27 * (512 + 64) * 2),
    "deepseek-v3": (671e9, 61 * (512 + 64) * 2),
    "gemma-2-9b": (9.24e9, 2 * 42 * 8 * 256 * 2),
    "qwen3-30b-a3b": (30.5e9, 2 * 48 * 4 * 128 * 2),
    "mistral-small-3.1-24b": (24.0e9, 2 * 40 * 8 * 128 * 2),
}


@pytest.mark.parametrize(("name", "published"), [(name, total) for name, (total, _) in PUBLISHED.items()])
def test_parameters_are_the_published_ones(name: str, published: float) -> None:
    assert shape(name).parameters.total == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(("name", "kept"), [(name, kept) for name, (_, kept) in PUBLISHED.items()])
def test_a_token_keeps_what_the_architecture_says(name: str, kept: int) -> None:
    model = shape(name)
    assert model.layers * memory.token_bytes(model, EnginePolicy()) == kept


def test_experts_are_counted_apart() -> None:
    """DeepSeek-V3: 58 of 61 layers hold 256 experts of three 7,168 x 2,048 matrices."""
    parts = shape("deepseek-v3").parameters
    assert parts.experts == 58 * 256 * 3 * 7_168 * 2_048
    assert parts.mlp == 3 * 7_168 * (3 * 18_432 + 58 * 2_048)
    assert shape("deepseek-v3").mlp_width == 18_432
    assert shape("mixtral-8x7b").mlp_width == 2 * 14_336
    assert not shape("llama-3.1-8b").mixture


@pytest.mark.parametrize(
    ("name", "longest"),
    [("smollm2-135m", 8_192), ("llama-3.1-8b", 131_072), ("deepseek-v3", 163_840), ("gemma-2-9b", 8_192)],
)
def test_the_longest_text_is_the_model_s(name: str, longest: int) -> None:
    assert shape(name).max_model_len == longest


def test_a_scaled_position_range_is_longer() -> None:
    given = json.loads(config("smollm2-135m").read_text())
    assert model_shape.shape_of(
        given | {"rope_scaling": {"type": "linear", "factor": 4.0}}
    ).max_model_len == (32_768)


def test_every_other_layer_of_gemma_2_keeps_a_window() -> None:
    model = shape("gemma-2-9b")
    assert (model.windowed_layers, model.window) == (21, 4_096)
    assert shape("qwen2.5-7b").windowed_layers == 0  # it has a window, and does not use it


def test_layers_may_be_named_one_by_one() -> None:
    given = json.loads(config("gemma-2-9b").read_text())
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    named = model_shape.shape_of(given | {"layer_types": kinds * 7, "sliding_window": 1_024})
    assert (named.windowed_layers, named.window) == (35, 1_024)


@pytest.mark.parametrize(
    ("name", "method", "precision", "activations"),
    [
        ("llama-3.1-8b-w8a8", "compressed-tensors", Precision.INT8, True),
        ("qwen2.5-7b-gptq-int8", "gptq", Precision.INT8, False),
        ("deepseek-v3", "fp8", Precision.FP8, True),
    ],
)
def test_a_quantised_checkpoint_says_so(
    name: str, method: str, precision: Precision, activations: bool
) -> None:
    stored = shape(name).stored
    assert stored
    assert (stored.method, stored.precision, stored.activations) == (method, precision, activations)


@pytest.mark.parametrize(
    ("quantization", "precision", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, Precision.INT4, 4),
        ({"quant_method": "awq", "w_bit": 4}, Precision.INT4, 4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, Precision.FP8, 8),
        ({"quant_method": "mxfp4"}, None, 4.25),
        ({"quant_method": "gptq", "bits": 3}, None, 3),
        ({"quant_method": "new"}, None, 16),
        ({"quant_method": "compressed-tensors", "config_groups": {}}, None, 16),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "a": {"weights": {"num_bits": 4, "type": "int"}},
                    "b": {"weights": {"num_bits": 8, "type": "float"}},
                },
            },
            Precision.FP8,
            8,
        ),
    ],
)
def test_formats_are_read_from_what_their_libraries_write(
    quantization: dict[str, object], precision: Precision | None, bits: float
) -> None:
    stored = checkpoint.stored_format({"quantization_config": quantization})
    assert stored
    assert (stored.precision, stored.bits) == (precision, bits)


def test_a_model_is_found_by_its_folder_and_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(config("smollm2-135m").read_bytes())
    assert model_shape.find(tmp_path) == model_shape.find(config("smollm2-135m")) == shape("smollm2-135m")


@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "nobody/no-such-model", "/no/such/folder"])
def test_what_lies_nowhere_has_no_shape(name: str) -> None:
    assert model_shape.find(name) is None


@pytest.mark.parametrize(
    ("text", "told"), [("{", "not a readable"), ('{"hidden_size": 8}', "num_hidden_layers")]
)
def test_what_cannot_be_planned_is_told(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(UnknownShape, match=told):
        model_shape.find(tmp_path)
