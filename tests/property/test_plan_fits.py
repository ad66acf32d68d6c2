"""A plan that fits never takes more of a card than its cap, whatever the model, the card and the policy."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from jobs.domain.lanes import LANES
from jobs.domain.policies import EnginePolicy, Precision
from tests.model_shapes import CONFIGS, shape
from workers.planning import memory, plan
from workers.planning.cards import KINDS, Card

SHAPES = {file.stem: shape(file.stem) for file in CONFIGS.glob("*.json")}

policies = st.builds(
    EnginePolicy,
    sequences=st.integers(1, 512),
    batched_tokens=st.integers(512, 32_768),
    precision=st.sampled_from(list(Precision)),
    kv_cache_dtype=st.sampled_from(["auto", "fp8"]),
    memory_share=st.floats(0.05, 1),
    kv_cache_gib=st.none() | st.floats(0.01, 100),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    enforce_eager=st.booleans(),
)


@given(
    model=st.sampled_from(sorted(SHAPES)),
    kind=st.sampled_from(sorted(KINDS)),
    policy=policies,
    lane=st.sampled_from(sorted(LANES)),
    length=st.integers(16, 200_000),
    mean=st.integers(1, 40_000),
)
def test_a_plan_that_fits_stays_under_its_cap(
    model: str, kind: str, policy: EnginePolicy, lane: str, length: int, mean: int
) -> None:
    lanes = {lane: replace(LANES[lane], engine=policy, max_model_len=length)}
    cards = [Card(index, KINDS[kind]) for index in range(policy.tensor_parallel)]
    (engine,) = plan.make(lanes, cards, lambda _: SHAPES[model], mean_prompt_tokens={lane: mean}).engines
    assert engine.memory is not None
    assert bool(engine.problems) or not engine.remedies
    if engine.problems:
        return
    needed = engine.memory
    assert needed.used <= needed.cap <= cards[0].memory_bytes
    assert needed.sequences >= 1
    assert 1 <= engine.limits[lane] <= lanes[lane].most_limit
    typical = memory.sequence_bytes(SHAPES[model], engine.policy, min(2 * mean, engine.max_model_len))
    assert needed.fixed + engine.limits[lane] * typical <= needed.cap
    assert needed.fixed + needed.sequences * needed.sequence <= needed.cap
