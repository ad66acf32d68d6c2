"""Engine policies that together pull every lever, for tests of the arguments that vLLM is given."""

from collections.abc import Mapping
from dataclasses import dataclass

from jobs.domain.lanes import LANES
from jobs.domain.policies import EnginePolicy, Precision, Scheduling, SpeculationMethod, SpeculationPolicy


@dataclass(frozen=True)
class Case:
    """A policy, and the model of tests/data/model_configs that it is for."""

    policy: EnginePolicy
    model: str = "llama-3.1-8b"


FP8, BF16 = Precision.FP8, Precision.BF16
CASES: Mapping[str, Case] = {
    "hot": Case(LANES["hot"].engine),
    "warm": Case(LANES["warm"].engine),
    "cold": Case(LANES["cold"].engine, "llama-3.1-8b-w8a8"),
    "native fp8": Case(EnginePolicy(precision=FP8), "deepseek-v3"),
    "gptq": Case(EnginePolicy(precision=Precision.INT8), "qwen2.5-7b-gptq-int8"),
    "narrow type": Case(EnginePolicy(precision=Precision.FP16)),
    "priorities": Case(EnginePolicy(4, batched_tokens=2_048, scheduling=Scheduling.PRIORITY)),
    "pieces": Case(EnginePolicy(long_prefill_tokens=1_024, prefix_caching=False)),
    "whole prompts": Case(EnginePolicy(batched_tokens=1_024, chunked_prefill=False)),
    "own cache": Case(EnginePolicy(kv_cache_gib=2.5, kv_cache_dtype="fp8", memory_share=0.4)),
    "eager": Case(EnginePolicy(enforce_eager=True)),
    "ngram": Case(EnginePolicy(16, speculation=SpeculationPolicy())),
    "ngram in small batches": Case(EnginePolicy(16, speculation=SpeculationPolicy(tokens=2, max_batch=8))),
    "draft model": Case(
        EnginePolicy(
            16, speculation=SpeculationPolicy(SpeculationMethod.DRAFT_MODEL, 2, "draft", max_batch=4)
        )
    ),
    "named quantization": Case(EnginePolicy(quantization="fp8_per_block")),
    "all but some layers": Case(
        EnginePolicy(
            precision=FP8, layers={"*down_proj*": BF16, r"re:.*o_proj": Precision.AUTO, "*q_proj*": FP8}
        )
    ),
    "some layers": Case(EnginePolicy(precision=BF16, layers={"*down_proj*": FP8, "*o_proj*": BF16})),
    "experts": Case(EnginePolicy(layers={"*experts*": Precision.INT8}), "mixtral-8x7b"),
    "beside a checkpoint": Case(
        EnginePolicy(precision=Precision.INT8, layers={"*gate_up_proj*": FP8}), "llama-3.1-8b-w8a8"
    ),
}
