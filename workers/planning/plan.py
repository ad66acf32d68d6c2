"""The plan: which engine sits on which cards, in what precision, how many sequences fit, what does not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from jobs.domain.lanes import LanePolicy
from jobs.domain.policies import EnginePolicy
from jobs.settings import Settings
from workers.planning import model_shape, placement, precision
from workers.planning.cards import Card, found
from workers.planning.engine_plan import EnginePlan, ShapeOf, plan_engine, typical_prompt
from workers.planning.model_shape import ModelShape, UnknownShape
from workers.planning.placement import MOST_SHARED, Pin, Placement

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
    pinned: Sequence[Pin] = (),
    mean_prompt_tokens: Mapping[str, int] | None = None,
) -> Plan:
    """Plan `lanes`, in rank order, on `cards`.

    `shape_of` gives the shape of the weights that an engine policy names. `mean_prompt_tokens` by lane
    decides the starting limits; a lane that it does not name is taken at the middle of its own lengths.
    """
    means = {name: typical_prompt(lanes, name) for name in lanes} | dict(mean_prompt_tokens or {})
    placed = [part for whole in placement.place(lanes, cards, pinned) for part in _by_kind(whole)]
    engines = [
        plan_engine(part, lanes, shape_of, means, alone=all(part is other for other in _beside(part, placed)))
        for part in placed
    ]
    return Plan(tuple(engines), tuple(_crowded(engines)))


def check(settings: Settings, lanes: Sequence[str], gpus: Sequence[int]) -> None:
    """Raise `PlanRefused` where an engine for `lanes` (in rank order) cannot run on the cards `gpus`.

    Without numbers the first cards count. On a machine without cards, and for a model whose config.json is
    not here or cannot be read, only what is known is judged.
    """
    policies = {name: settings.lanes[name] for name in lanes}
    policy = placement.policy_of(lanes, policies)
    cards = found()
    if not cards:
        shape = shape_known(settings, policy) if policy.checkpoint else None
        if refusal := precision.checkpoint_refusal(policy, policy.precision, shape):
            raise PlanRefused(f"{', '.join(lanes)}: {refusal}")
        return
    numbers = [card.index for card in cards]
    if missing := [gpu for gpu in gpus if gpu not in numbers]:
        raise PlanRefused(f"GPU {missing[0]}: there is none; there are {', '.join(map(str, numbers))}")
    pin = (lanes, gpus or numbers[: policy.tensor_parallel])
    plan = make(policies, cards, lambda asked: shape_known(settings, asked), [pin])
    if not plan.fits:
        raise PlanRefused("\n".join(explained(plan)))


def explained(plan: Plan) -> list[str]:
    """The lines that say what does not fit, and what to change."""
    lines = list(plan.problems)
    for engine in plan.engines:
        if engine.problems:
            lines.append(f"{', '.join(engine.lanes)} on {engine.where} does not fit:")
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
        total = sum(engine.policy.memory_share for engine in here)
        if len(here) > 1 and total > MOST_SHARED:
            names = " and ".join(", ".join(engine.lanes) for engine in here)
            problems.append(
                f"GPU {index}: the shares of memory of {names} add to {total:g}, {MOST_SHARED} is the most:"
                " lower lane.<name>.engine.memory_share"
            )
    return problems
