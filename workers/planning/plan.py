"""The plan: which engine sits on which cards, in what precision, how many sequences fit, what does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from jobs.domain.lanes import LanePolicy
from jobs.domain.policies import EnginePolicy
from jobs.settings import Settings, WorkerPlacement
from workers.planning import model_shape, placement, precision
from workers.planning.cards import Card, found
from workers.planning.engine_plan import (
    EnginePlan,
    ShapeOf,
    borrowed_checkpoint,
    plan_engine,
    typical_prompt,
)
from workers.planning.model_shape import ModelShape, UnknownShape
from workers.planning.placement import MOST_SHARED, Group, Placement

log = structlog.get_logger()


class PlanRefused(ValueError):
    """An engine does not fit its cards; the message says why, and what to change."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All engines, those of the fastest lanes first; `problems` are of cards rather than of one engine."""

    engines: tuple[EnginePlan, ...]
    problems: tuple[str, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether every engine can start."""
        return not self.problems and not any(engine.problems for engine in self.engines)


def make(
    lanes: Mapping[str, LanePolicy],
    cards: Sequence[Card],
    shape_of: ShapeOf,
    groups: Sequence[Group] = (),
    mean_prompt_tokens: Mapping[str, int] | None = None,
) -> Plan:
    """Plan `groups` of `lanes` on `cards`; without groups all lanes, with the first model alone.

    `lanes` are in rank order. `shape_of` gives the shape of the weights that an engine policy names.
    `mean_prompt_tokens` by lane decides the starting limits; a lane that it does not name is taken at the
    middle of its own lengths.
    """
    means = {name: typical_prompt(lanes, name) for name in lanes} | dict(mean_prompt_tokens or {})
    whole = placement.place(lanes, cards, groups or [Group(tuple(lanes))])
    placed = [part for one in whole for part in _by_kind(one)]
    engines = [
        plan_engine(part, lanes, shape_of, means, alone=all(part is other for other in _beside(part, placed)))
        for part in placed
    ]
    return Plan(tuple(engines), tuple(_crowded(engines)))


def groups_of(settings: Settings) -> list[Group]:
    """What the settings put on cards: the entries of `workers` that have some, and what no entry names."""
    entries = settings.workers
    named = {(lane, settings.further(entry.model)) for entry in entries for lane in entry.lanes}
    groups = [_group(settings, entry) for entry in entries if entry.gpus and entry.engine in (None, "vllm")]
    for model in settings.served:
        lanes = tuple(
            lane for lane in settings.lanes_of(model) if (lane, settings.further(model)) not in named
        )
        if lanes:
            groups.append(_group(settings, WorkerPlacement(lanes=lanes, model=model)))
    return groups


def check(settings: Settings, worker: WorkerPlacement) -> None:
    """Raise `PlanRefused` where the engine of `worker` cannot run on its cards.

    An entry of `workers` shares them with the other entries there. Without numbers the first cards count. On
    a machine without cards, and for a model whose config.json is not here or cannot be read, only what is
    known is judged.
    """
    own = _group(settings, worker)
    policy = placement.policy_of(own.lanes, settings.lanes)
    cards = found()
    if not cards:
        shape = shape_known(settings, policy) if policy.checkpoint else None
        refusal = borrowed_checkpoint(own, settings.lanes)
        if refusal := refusal or precision.checkpoint_refusal(policy, policy.precision, shape):
            raise PlanRefused(f"{', '.join(own.lanes)}: {refusal}")
        return
    numbers = [card.index for card in cards]
    if missing := [gpu for gpu in own.gpus if gpu not in numbers]:
        raise PlanRefused(f"GPU {missing[0]}: there is none; there are {', '.join(map(str, numbers))}")
    own = replace(own, gpus=own.gpus or tuple(numbers[: policy.tensor_parallel]))
    groups = [own, *(_group(settings, entry) for entry in _neighbours(settings, worker))]
    plan = make(settings.lanes, cards, lambda asked: shape_known(settings, asked), groups)
    engines = tuple(one for one in plan.engines if (one.lanes, one.model) == (own.lanes, own.model))
    if not (judged := Plan(engines, plan.problems)).fits:
        raise PlanRefused("\n".join(explained(judged)))


def explained(plan: Plan) -> list[str]:
    """The lines that say what does not fit, and what to change."""
    lines = list(plan.problems)
    for engine in plan.engines:
        if engine.problems:
            lines.append(f"{engine.title} on {engine.where} does not fit:")
            lines += (f"  {problem}" for problem in engine.problems)
        if engine.remedies:
            lines += ("  change one of:", *(f"    {remedy}" for remedy in engine.remedies))
    return lines


def shape_known(settings: Settings, policy: EnginePolicy) -> ModelShape | None:
    """The shape of the weights a policy names, if it can be known; an odd model is the engine's to refuse."""
    try:
        return model_shape.find(policy.checkpoint or settings.engine.model_path or settings.model)
    except UnknownShape as error:
        log.warning("plan.unknown", reason=str(error))
        return None


def _group(settings: Settings, entry: WorkerPlacement) -> Group:
    """The lanes of an entry, in rank order, and what its engine loads."""
    model = settings.further(entry.model)
    weights = entry.model_path or (model and (settings.models[model].model_path or model))
    lanes = tuple(lane for lane in settings.lanes if lane in entry.lanes)
    return Group(lanes, model, weights and str(weights), entry.gpus)


def _neighbours(settings: Settings, worker: WorkerPlacement) -> list[WorkerPlacement]:
    """The other entries of `workers` that run vLLM on its cards; none for a worker that is no entry."""
    entries = [entry for entry in settings.workers if set(entry.gpus) & set(worker.gpus)]
    own = next((entry for entry in entries if settings.place(entry) == settings.place(worker)), None)
    if own is None:
        return []
    entries.remove(own)  # once: its equals are other processes
    return [entry for entry in entries if (entry.engine or settings.engine.name) == "vllm"]


def _by_kind(placed: Placement) -> list[Placement]:
    """The placement, cut into parts whose cards are alike."""
    kinds = list(dict.fromkeys(card.kind for card in placed.cards))
    parts = [tuple(card for card in placed.cards if card.kind == kind) for kind in kinds]
    return [replace(placed, cards=part) for part in parts] or [placed]


def _beside(part: Placement, placed: Sequence[Placement]) -> list[Placement]:
    """The placements that have a card in common with this one, itself among them."""
    return [other for other in placed if set(other.cards) & set(part.cards)]


def _crowded(engines: Sequence[EnginePlan]) -> list[str]:
    """Cards whose engines ask for more than there is."""
    problems = []
    for index in sorted({card.index for engine in engines for card in engine.cards}):
        here = [engine for engine in engines if index in {card.index for card in engine.cards}]
        total = placement.total_share(engine.policy for engine in here)
        if len(here) > 1 and total > MOST_SHARED:
            names = " and ".join(engine.title for engine in here)
            problems.append(
                f"GPU {index}: the shares of memory of {names} add to {total:g}, {MOST_SHARED} is the most:"
                " lower lane.<name>.engine.memory_share"
            )
    return problems
