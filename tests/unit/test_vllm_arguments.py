"""The arguments that vLLM is given for a lane's policy."""

from pathlib import Path
from typing import Any

import pytest

from jobs.domain.lanes import LANES
from jobs.domain.policies import EnginePolicy, Precision
from tests.engine_policies import CASES
from tests.model_shapes import shape
from workers.engines.registry import EngineConfig
from workers.engines.vllm_arguments import MixRefused, arguments

DEFAULTS: dict[str, Any] = {
    "model": "/models/m",
    "served_model_name": "m",
    "dtype": "auto",
    "max_model_len": 4_096,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 8_192,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "scheduling_policy": "fcfs",
    "enable_prefix_caching": True,
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
    "enforce_eager": False,
    "gpu_memory_utilization": 0.85,
}
NGRAM = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
ONLINE = {"quantization": "fp8_per_tensor"}

# What differs from the defaults, by the case of tests/engine_policies.py.
EXPECTED: dict[str, dict[str, Any]] = {
    "hot": {"max_num_batched_tokens": 4_096},
    "warm": {"max_num_seqs": 16, "scheduling_policy": "priority"} | ONLINE,
    "cold": {"scheduling_policy": "priority", "gpu_memory_utilization": 0.5},
    "native fp8": {},
    "gptq": {},
    "narrow type": {"dtype": "float16"},
    "priorities": {"max_num_batched_tokens": 2_048, "scheduling_policy": "priority"},
    "pieces": {"long_prefill_token_threshold": 1_024, "enable_prefix_caching": False},
    "whole prompts": {"max_num_batched_tokens": 4_096, "enable_chunked_prefill": False},
    "own cache": {
        "kv_cache_memory_bytes": 5 << 29,
        "kv_cache_dtype": "fp8",
        "gpu_memory_utilization": 0.4,
    },
    "eager": {"enforce_eager": True},
    "ngram": {"max_num_seqs": 16, "speculative_config": NGRAM},
    "ngram in small batches": {
        "max_num_seqs": 16,
        "speculative_config": NGRAM | {"num_speculative_tokens_per_batch_size": [(1, 8, 2), (9, 16, 0)]},
    },
    "draft model": {
        "max_num_seqs": 16,
        "speculative_config": {
            "method": "draft_model",
            "model": "draft",
            "num_speculative_tokens": 2,
            "num_speculative_tokens_per_batch_size": [(1, 4, 2), (5, 16, 0)],
        },
    },
    "named quantization": {"quantization": "fp8_per_block"},
    "all but some layers": ONLINE | {"quantization_config": {"ignore": ["*down_proj*", "re:.*o_proj"]}},
    "some layers": {
        "dtype": "bfloat16",
        "quantization": "online",
        "quantization_config": {"targets": {"*down_proj*": "fp8_per_tensor"}},
    },
    "experts": {
        "quantization": "online",
        "quantization_config": {"targets": {"*experts*": "int8_per_channel_weight_only"}},
    },
    "beside a checkpoint": {"quantization_config": {"targets": {"*gate_up_proj*": "fp8_per_tensor"}}},
}


def config(policy: EnginePolicy, slots: int = 8, length: int = 4_096, **given: Any) -> EngineConfig:
    return EngineConfig("m", slots, length, model_path=Path("/models/m"), policy=policy, **given)


def test_every_case_is_expected() -> None:
    assert set(EXPECTED) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_each_lever_is_an_argument(name: str) -> None:
    case = CASES[name]
    assert arguments(config(case.policy), shape=shape(case.model)) == DEFAULTS | EXPECTED[name]


def test_slots_beyond_the_policy_are_sequences_too() -> None:
    given = arguments(config(EnginePolicy(2, batched_tokens=8), slots=12))
    assert (given["max_num_seqs"], given["max_num_batched_tokens"]) == (12, 12)


def test_no_more_is_asked_for_than_the_model_has() -> None:
    policy = EnginePolicy(long_prefill_tokens=9_000)
    given = arguments(config(policy, length=32_768), shape=shape("smollm2-135m"))
    assert (given["max_model_len"], given["long_prefill_token_threshold"]) == (8_192, 8_192)
    assert arguments(config(policy, length=32_768))["max_model_len"] == 32_768


def test_the_lane_s_checkpoint_replaces_the_model() -> None:
    """One of unknown shape counts as quantised: it is what lanes have checkpoints of their own for."""
    given = arguments(config(EnginePolicy(precision=Precision.FP8, checkpoint="/models/fp8")))
    assert given["model"] == "/models/fp8"
    assert "quantization" not in given


def test_a_model_without_a_path_goes_by_its_name() -> None:
    assert arguments(EngineConfig("org/model", 1, 64))["model"] == "org/model"


def test_tensor_parallel_is_told() -> None:
    assert arguments(config(EnginePolicy(tensor_parallel=2)))["tensor_parallel_size"] == 2


def test_options_have_the_last_word() -> None:
    given = arguments(config(EnginePolicy(), options={"max_num_seqs": 3, "seed": 1}))
    assert (given["max_num_seqs"], given["seed"]) == (3, 1)


def test_a_cpu_takes_the_checkpoint_as_it_is_and_little_memory() -> None:
    given = arguments(config(LANES["warm"].engine), device="cpu")
    assert not {"quantization", "gpu_memory_utilization"} & set(given)
    assert given["kv_cache_memory_bytes"] == 1 << 30


def test_a_cpu_s_cache_holds_one_full_sequence_at_least() -> None:
    given = arguments(config(LANES["cold"].engine, length=32_768), device="cpu", shape=shape("llama-3.1-8b"))
    assert given["kv_cache_memory_bytes"] == 32_768 * 131_072
    small = arguments(config(EnginePolicy(kv_cache_gib=0.25)), device="cpu", shape=shape("smollm2-135m"))
    assert small["kv_cache_memory_bytes"] == 1 << 28


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            EnginePolicy(precision=Precision.FP8, layers={"*experts*": Precision.INT8}),
            "int8 beside fp8_per_tensor",
        ),
        (EnginePolicy(layers={"*o_proj*": Precision.INT4}), "vLLM makes no int4 of layers as it loads them"),
        (EnginePolicy(layers={"*o_proj*": Precision.FP32}), "vLLM makes no fp32"),
    ],
)
def test_mixes_that_vllm_does_not_take_are_refused(policy: EnginePolicy, told: str) -> None:
    with pytest.raises(MixRefused, match=told):
        arguments(config(policy))
