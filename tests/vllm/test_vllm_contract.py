"""The engine contract, kept by real vLLM with SmolLM2."""

from collections.abc import Iterator

import pytest

from jobs.domain.policies import EnginePolicy
from jobs.domain.requests import GenerationRequest
from jobs.model_files import smollm2_path
from jobs.tokenizer import TokenCounter
from tests.contract import test_engines as contract
from tests.vllm import models
from tests.vllm.driver import core_of
from workers.engines.registry import EngineConfig
from workers.engines.vllm import VllmEngine

globals().update({name: test for name, test in vars(contract).items() if name.startswith("test_")})


def vllm() -> contract.Rig:
    """vLLM, its prefill in steps of 64 tokens, so that it is caught in the act."""
    config = EngineConfig(
        "smollm2",
        slots=contract.SLOTS,
        max_model_len=contract.MAX_MODEL_LEN,
        model_path=models.smollm2(),
        policy=EnginePolicy(sequences=contract.SLOTS, batched_tokens=64, kv_cache_gib=0.5),
        options={"dtype": "float32", "enforce_eager": True},
    )
    engine = VllmEngine(config)

    def unfinished() -> int:
        count: int = engine._llm.output_processor.get_num_unfinished_requests()
        return count

    def whole_text(request: GenerationRequest) -> str:
        return made.run(_whole_text(engine, request))

    made = contract.Rig(engine, TokenCounter(smollm2_path()).count, unfinished, whole_text)
    return made


async def _whole_text(engine: VllmEngine, request: GenerationRequest) -> str:
    from vllm.sampling_params import RequestOutputKind

    prepared = await engine._prepare(request)
    assert isinstance(prepared, tuple)
    prompt, params = prepared
    params.output_kind = RequestOutputKind.FINAL_ONLY
    outputs = [output async for output in engine._llm.generate(prompt, params, "whole")]
    return str(outputs[-1].outputs[0].text)


@pytest.fixture(scope="module")
def rig() -> Iterator[contract.Rig]:
    """One engine for all tests of the contract."""
    yield from contract.running(vllm)


def test_a_core_that_dies_while_idle_is_noticed(rig: contract.Rig) -> None:
    # The last test here: it takes the engine with it.
    engine = rig.engine
    assert isinstance(engine, VllmEngine) and not engine.dead

    async def die() -> None:
        core_of(engine).kill()
        await contract.until(lambda: engine.dead)

    rig.run(die())
