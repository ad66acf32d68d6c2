"""One engine of a plan: its precision on its cards, what its memory holds, and what does not fit."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from jobs.domain.lanes import LanePolicy
from jobs.domain.policies import EnginePolicy, Precision
from workers.planning import placement, precision
from workers.planning.cards import Card
from workers.planning.memory import GIB, Memory
from workers.planning.model_shape import ModelShape
from workers.planning.placement import Group, Placement
from workers.planning.precision import Verdict
from workers.planning.remedies import Demand, PlannedEngine, remedies

ShapeOf = Callable[[EnginePolicy], ModelShape | None]

_START_LIMITS = ((512, 8), (2_049, 4))  # mean prompt tokens below this -> jobs admitted at once
_LONG_START_LIMIT = 2
_BF16 = precision.LEAST_CAPABILITY[Precision.BF16]


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """One engine on each of its `cards`, which are alike, or on each bundle of them if tensor parallel.

    `model` None is the first one. `limits` are the jobs to admit at first, by lane. No decode step is
    shorter than `least_step_ms`, which is reading the weights once; None for mixtures of experts, which read
    a part. `verdict` and `memory` are None where nothing is known of the card or the model.
    """

    lanes: tuple[str, ...]
    cards: tuple[Card, ...]
    reason: str
    policy: EnginePolicy
    max_model_len: int
    model: str | None = None
    verdict: Verdict | None = None
    memory: Memory | None = None
    limits: Mapping[str, int] = field(default_factory=dict)
    least_step_ms: float | None = None
    problems: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """`warm, cold`, and of a further model `warm, cold of Qwen2.5-0.5B`."""
        return ", ".join(self.lanes) + (f" of {self.model}" if self.model else "")

    @property
    def where(self) -> str:
        """`GPU 0-4, 6 (A100-80G)`."""
        if not self.cards:
            return "no card"
        runs: list[list[int]] = []
        for card in self.cards:
            if runs and card.index == runs[-1][-1] + 1:
                runs[-1].append(card.index)
            else:
                runs.append([card.index])
        numbers = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        return f"GPU {numbers} ({self.cards[0].kind.name})"


def starting_limit(mean_prompt_tokens: int) -> int:
    """Jobs to admit at once at first: 8 below 512 tokens of prompt on average, 4 to 2,048, 2 above."""
    return next((limit for below, limit in _START_LIMITS if mean_prompt_tokens < below), _LONG_START_LIMIT)


def typical_prompt(lanes: Mapping[str, LanePolicy], name: str) -> int:
    """The middle of the prompt lengths that are routed to the lane, in tokens."""
    bounds = [0, *(lane.routed_tokens or 0 for lane in lanes.values())]
    rank = list(lanes).index(name)
    least = bounds[rank]
    return (least + (bounds[rank + 1] or 2 * least)) // 2


def plan_engine(
    placed: Placement,
    lanes: Mapping[str, LanePolicy],
    shape_of: ShapeOf,
    means: Mapping[str, int],
    *,
    alone: bool,
) -> EnginePlan:
    """The plan of the engine for `placed`, whose cards are alike; `alone`: no other engine is on them.

    It fits where its cache holds one sequence of each lane's full length, as vLLM itself demands, and the
    fewest jobs that each lane admits, with answers as long as their prompts, which are `means` on average.
    """
    group = placed.group
    served = [lanes[name] for name in group.lanes]
    policy = placement.policy_of(group.lanes, lanes)
    policy = replace(
        policy,
        sequences=max(policy.sequences, *(lane.most_limit for lane in served)),
        checkpoint=policy.checkpoint or group.weights,
    )
    shape = shape_of(policy)
    longest = max(lane.max_model_len for lane in served)
    plan = EnginePlan(group.lanes, placed.cards, placed.reason, policy, longest, group.model)
    if not placed.cards:
        return replace(plan, problems=(f"no card: {placed.reason}",))
    capability = placed.cards[0].kind.capability
    verdict = precision.judge(policy, capability, shape)
    refusals = (
        borrowed_checkpoint(group, lanes),
        _precision_refusal(group.lanes[0], verdict, capability),
        precision.cache_refusal(policy.kv_cache_dtype, capability, shape),
        _cards_refusal(policy, len(placed.cards), shape),
    )
    plan = replace(plan, verdict=verdict, problems=tuple(refusal for refusal in refusals if refusal))
    if shape is None:
        return plan
    demands = tuple(demand for lane in served for demand in _demands(lane, means[lane.name]))
    planned = verdict.nearest or verdict.precision
    draft = _draft(policy, shape_of)
    engine = PlannedEngine(demands, placed.cards[0], shape, policy, planned, draft)
    return _with_memory(plan, engine.cut(shape.max_model_len), served, means, alone=alone)


def borrowed_checkpoint(group: Group, lanes: Mapping[str, LanePolicy]) -> str | None:
    """Why a further model would not be what its name says; None where it loads its own weights."""
    if group.model is None or placement.policy_of(group.lanes, lanes).checkpoint is None:
        return None
    lane = group.lanes[0]
    return (
        f"lane.{lane}.engine.checkpoint replaces the weights of each model on the lane:"
        f" take {lane} out of the lanes of models.{group.model}, or the checkpoint out of the lane"
    )


def _draft(policy: EnginePolicy, shape_of: ShapeOf) -> ModelShape | None:
    """The shape of the model that proposes tokens, where there is one."""
    if policy.speculation is None or policy.speculation.draft_model is None:
        return None
    return shape_of(replace(policy, checkpoint=policy.speculation.draft_model))


def _demands(lane: LanePolicy, mean_prompt_tokens: int) -> tuple[Demand, Demand]:
    typical = min(2 * mean_prompt_tokens, lane.max_model_len)
    return Demand(lane.name, lane.least_limit, typical), Demand(lane.name, 1, lane.max_model_len)


def _with_memory(
    plan: EnginePlan,
    engine: PlannedEngine,
    served: Sequence[LanePolicy],
    means: Mapping[str, int],
    *,
    alone: bool,
) -> EnginePlan:
    memory, fits = engine.memory(), engine.fits()
    bandwidth = engine.card.kind.bandwidth_gb_s
    return replace(
        plan,
        max_model_len=engine.longest.tokens,
        memory=memory,
        limits={lane.name: _limit(lane, engine, memory, means[lane.name]) for lane in served},
        least_step_ms=None if engine.shape.mixture or not bandwidth else memory.weights / bandwidth / 1e6,
        problems=plan.problems if fits else (*plan.problems, _shortage(engine, memory)),
        remedies=() if fits else tuple(remedies(engine)),
        notes=tuple(_notes(plan, engine, memory, means, alone=alone)),
    )


def _limit(lane: LanePolicy, engine: PlannedEngine, memory: Memory, mean_prompt_tokens: int) -> int:
    """The starting limit, no more than the lane ever admits and than the cache holds; 1 at least."""
    typical, _ = _demands(lane, mean_prompt_tokens)
    fitting = memory.cache // engine.needed(replace(typical, sequences=1))
    return max(min(starting_limit(mean_prompt_tokens), lane.most_limit, fitting), 1)


def _notes(
    plan: EnginePlan, engine: PlannedEngine, memory: Memory, means: Mapping[str, int], *, alone: bool
) -> Iterator[str]:
    length = engine.longest.tokens
    if length < plan.max_model_len:
        yield f"the model takes {length:,} tokens: the lane's {plan.max_model_len:,} are cut to that"
    if 0 < memory.sequences < engine.policy.sequences:
        yield (
            f"{memory.sequences} of {engine.policy.sequences} sequences fit at full length:"
            " where more are that long at once, vLLM preempts"
        )
    if engine.precision is Precision.FP8 and engine.card.kind.capability < precision.NATIVE_FP8:
        yield "weight-only FP8 saves memory, not time: an INT8 checkpoint computes in INT8 on this card"
    if engine.precision in precision.WIDE and engine.card.kind.capability < _BF16:
        yield f"this card computes fastest in INT8: {engine.setting('engine.checkpoint')} may be a W8A8 one"
    if alone and engine.policy.memory_share <= placement.SMALL_SHARE:
        yield (
            f"no other engine is on this card, and {engine.policy.memory_share:g} of it is used:"
            f" {engine.setting('engine.memory_share')} may rise"
        )
    for name in plan.lanes:
        if len(plan.lanes) > 1 and starting_limit(means[name]) == _LONG_START_LIMIT:
            yield f"{name}: prompts of {means[name]:,} tokens on average want a lane and a card of their own"


def _precision_refusal(lane: str, verdict: Verdict, capability: int) -> str | None:
    if verdict.refusal is None or verdict.nearest is None:
        return verdict.refusal
    widened = verdict.nearest is Precision.FP8 and capability < precision.NATIVE_FP8
    setting = f'lane.{lane}.engine.precision = "{verdict.nearest}"{" (weight-only here)" if widened else ""}'
    return f"{verdict.refusal}; the nearest legal: {setting}"


def _cards_refusal(policy: EnginePolicy, cards: int, shape: ModelShape | None) -> str | None:
    if cards < policy.tensor_parallel:
        return f"tensor_parallel {policy.tensor_parallel} needs as many cards of one kind, there are {cards}"
    if shape and shape.heads % policy.tensor_parallel:
        return f"tensor_parallel {policy.tensor_parallel} does not divide the {shape.heads} attention heads"
    return None


def _shortage(engine: PlannedEngine, memory: Memory) -> str:
    """The sum that does not come out; a cache that is set by hand counts as it is set."""
    demand, by_hand = engine.greediest, engine.policy.kv_cache_gib
    room = engine.needed(demand)
    asked = f"{demand.sequences} x {demand.tokens:,} tokens of {demand.lane} {room / GIB:.1f} GiB"
    if by_hand and room > memory.cache:
        return f"kv_cache_gib {by_hand:g} is too little: {asked}"
    if by_hand:
        room, asked = memory.cache, f"kv_cache_gib {by_hand:g}"
    other = (memory.fixed - memory.weights) / GIB
    return (
        f"{engine.precision} weights {memory.weights / GIB:.1f} GiB; activations, graphs and context"
        f" {other:.1f} GiB; {asked}: {(memory.fixed + room) / GIB:.1f} GiB in all,"
        f" the cap is {memory.cap / GIB:.1f} GiB ({engine.policy.memory_share:g} of {engine.card.kind.name})"
    )
