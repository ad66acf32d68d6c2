"""The arguments for cards, INT8 and FP8 among them, before vLLM's own classes: no CPU can run them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.domain.lanes import LANES
from jobs.domain.policies import EnginePolicy, Precision, SpeculationPolicy
from workers.engines.registry import EngineConfig
from workers.engines.vllm_arguments import arguments
from workers.engines.vllm_precision import linear_precision

W8A8 = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
    "ignore": ["lm_head"],
}


EngineArgs = Callable[..., Any]


@pytest.fixture
def engine_args(tiny_llama: Path) -> EngineArgs:
    """Makes vLLM's `AsyncEngineArgs` of a policy on a card, which raise for what they do not know."""
    from vllm.engine.arg_utils import AsyncEngineArgs

    def make(policy: EnginePolicy, max_model_len: int = 4096) -> Any:
        config = EngineConfig("tiny", policy.sequences, max_model_len, model_path=tiny_llama, policy=policy)
        return AsyncEngineArgs(**arguments(config, device="cuda"))

    return make


@pytest.mark.parametrize("lane", LANES)
def test_each_lanes_arguments_are_vllms(engine_args: EngineArgs, lane: str) -> None:
    from vllm.config import CacheConfig, SchedulerConfig

    policy, longest = LANES[lane].engine, LANES[lane].max_model_len
    args = engine_args(policy, longest)
    scheduler = SchedulerConfig(
        max_model_len=longest,
        is_encoder_decoder=False,
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        enable_chunked_prefill=args.enable_chunked_prefill,
        policy=args.scheduling_policy,
        long_prefill_token_threshold=args.long_prefill_token_threshold,
    )
    assert (scheduler.max_num_seqs, scheduler.policy) == (policy.sequences, policy.scheduling)
    cache = CacheConfig(
        gpu_memory_utilization=args.gpu_memory_utilization,
        cache_dtype=args.kv_cache_dtype,
        enable_prefix_caching=args.enable_prefix_caching,
    )
    assert cache.gpu_memory_utilization == policy.memory_share


def test_online_fp8_makes_fp8_of_linear_layers(engine_args: EngineArgs) -> None:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

    args = engine_args(EnginePolicy(precision=Precision.FP8))
    online = OnlineQuantizationConfig(args.quantization_config)
    resolved = online.resolve_quant_method_cls(LinearBase, "model.layers.0.mlp.down_proj")
    assert resolved is not None
    assert "Fp8" in resolved[-1].__name__
    assert precision_of(args.quantization, args.quantization_config) == "fp8"


def test_layers_that_a_policy_leaves_alone_stay_as_they_are(engine_args: EngineArgs) -> None:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

    policy = EnginePolicy(precision=Precision.FP8, layers={"*.down_proj": Precision.BF16})
    online = OnlineQuantizationConfig(engine_args(policy).quantization_config)
    assert online.resolve_quant_method_cls(LinearBase, "model.layers.0.mlp.down_proj") is None
    assert online.resolve_quant_method_cls(LinearBase, "model.layers.0.mlp.up_proj") is not None


def test_int8_of_experts_alone_is_no_int8_of_linear_layers(engine_args: EngineArgs) -> None:
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.quantization.online.base import OnlineQuantizationConfig

    args = engine_args(EnginePolicy(quantization="int8_per_channel_weight_only"))
    online = OnlineQuantizationConfig(args.quantization_config)
    assert online.resolve_quant_method_cls(LinearBase, "model.layers.0.mlp.down_proj") is None
    assert precision_of(args.quantization, args.quantization_config) == "bf16"


def test_an_int8_checkpoint_is_int8(engine_args: EngineArgs, tiny_llama: Path) -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    policy = EnginePolicy(precision=Precision.INT8, checkpoint=str(tiny_llama))
    args = engine_args(policy)
    assert (args.model, args.quantization) == (str(tiny_llama), None), "the checkpoint says what it is"
    scheme = get_quantization_config("compressed-tensors").from_config(W8A8)
    (group,) = scheme.target_scheme_map.values()
    assert group["weights"].num_bits == 8
    assert precision_of("compressed-tensors", None, W8A8) == "int8"


@pytest.mark.parametrize("method", ["awq", "gptq", "compressed-tensors", "fp8_per_tensor", "fp8_per_channel"])
def test_the_quantizations_that_are_named_in_the_settings_exist(engine_args: EngineArgs, method: str) -> None:
    from vllm.model_executor.layers.quantization import get_quantization_config

    assert get_quantization_config(engine_args(EnginePolicy(quantization=method)).quantization)


def test_speculation_is_by_vllms_schedule(engine_args: EngineArgs) -> None:
    policy = replace(LANES["warm"].engine, speculation=SpeculationPolicy(max_batch=4))
    given = engine_args(policy).speculative_config
    assert given["num_speculative_tokens"] <= 2
    assert given["method"] == "ngram"
    from vllm.config import SpeculativeConfig

    assert {"num_speculative_tokens_per_batch_size", *given} <= set(SpeculativeConfig.__dataclass_fields__)


def precision_of(method: str | None, online: Any, checkpoint: dict[str, Any] | None = None) -> str:
    """What is reported of a bfloat16 model that vLLM loads so."""
    hf_config = SimpleNamespace(quantization_config=checkpoint)
    return linear_precision(
        SimpleNamespace(
            dtype="torch.bfloat16", quantization=method, quantization_config=online, hf_config=hf_config
        )
    )
