"""vLLM's own configuration classes accept the arguments of every policy, also those for cards."""

from dataclasses import replace
from pathlib import Path

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs

from tests.engine_policies import CASES
from tests.model_shapes import config, shape
from workers.engines.registry import EngineConfig
from workers.engines.vllm_arguments import arguments


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_vllm_accepts(name: str, device: str, tmp_path: Path) -> None:
    case = CASES[name]  # of the checkpoint only the configuration is read
    (tmp_path / "config.json").write_bytes(config(case.model).read_bytes())
    policy = case.policy
    if policy.speculation and policy.speculation.draft_model:
        policy = replace(policy, speculation=replace(policy.speculation, draft_model=str(tmp_path)))
    given = arguments(
        EngineConfig("m", 8, 4_096, model_path=tmp_path, policy=policy),
        device=device,
        shape=shape(case.model),
    )
    made = AsyncEngineArgs(**given, skip_tokenizer_init=True).create_engine_config()
    assert made.scheduler_config.max_num_seqs == given["max_num_seqs"]
    assert made.scheduler_config.policy == given["scheduling_policy"]
    assert made.cache_config.cache_dtype == given["kv_cache_dtype"]
    assert made.cache_config.kv_cache_memory_bytes == given.get("kv_cache_memory_bytes")
    if "quantization" in given:
        assert made.model_config.quantization == given["quantization"]
    if schedule := given.get("speculative_config", {}).get("num_speculative_tokens_per_batch_size"):
        assert made.speculative_config.num_speculative_tokens_per_batch_size == schedule
