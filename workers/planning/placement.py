"""Which lane's engine sits on which cards: pinned by the operator, or by rules that are told in a line."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.domain.lanes import LanePolicy
from jobs.domain.policies import EnginePolicy, Precision
from workers.planning.cards import Card
from workers.planning.merging import merged
from workers.planning.precision import LEAST_CAPABILITY, NATIVE_FP8

SMALL_SHARE = 0.5  # of a card's memory: who asks for no more means to share it
MOST_SHARED = 0.95  # of one card's memory, by all engines on it: each has a context of its own besides


@dataclass(frozen=True, slots=True)
class Group:
    """Lanes of one model, in rank order: one engine on the cards `gpus`, or by the rules where those are ().

    `model` None is the first one; `weights` is the folder or name that is loaded, None the first model's.
    """

    lanes: tuple[str, ...]
    model: str | None = None
    weights: str | None = None
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """What one engine serves, the cards that each hold such an engine, or a part of it, and why."""

    group: Group
    cards: tuple[Card, ...]
    reason: str


def place(lanes: Mapping[str, LanePolicy], cards: Sequence[Card], groups: Sequence[Group]) -> list[Placement]:
    """All `groups` on cards, model by model, the first one first; `lanes` are in rank order.

    The rules for what is not pinned: each lane gets an engine and a card of its own; where there are too few
    cards, the slowest lanes of a model come together on one. FP8 lanes choose first, then INT8 and INT4
    lanes, then the others (`_taste`). Each card left over goes to the lane with the fewest cards for its
    weight; weights halve from rank to rank (4, 2, 1 for three lanes). What finds no card goes beside another
    engine where their shares of memory allow it, and else has none.
    """
    pinned = [group for group in groups if group.gpus]
    placed = [
        Placement(group, tuple(card for card in cards if card.index in group.gpus), "pinned by the operator")
        for group in pinned
    ]
    free = [card for card in cards if not any(card.index in group.gpus for group in pinned)]
    loose = _together([group for group in groups if not group.gpus], lanes, len(free))
    chosen = _choose(loose, lanes, free)
    _spread(chosen, lanes, free)
    alike = len({card.kind for card in cards}) == 1 and len(loose) > 1
    shares = " : ".join(str(len(chosen[group])) for group in loose)
    _join(chosen, lanes)
    for group in loose:
        reason = f"the cards are alike, and go {shares} by rank" if alike and chosen[group] else None
        placed += _engines(group, chosen, lanes, reason)
    ranks, models = list(lanes), [None, *(group.model for group in groups)]
    return sorted(placed, key=lambda one: (models.index(one.group.model), ranks.index(one.group.lanes[0])))


def policy_of(names: Sequence[str], lanes: Mapping[str, LanePolicy]) -> EnginePolicy:
    """The policy of the engine that serves these lanes together."""
    return merged([lanes[name] for name in names])


def total_share(policies: Iterable[EnginePolicy]) -> float:
    """The part of a card that these engines have together."""
    return round(sum(policy.memory_share for policy in policies), 6)  # 0.55 and 0.4 are no more than 0.95


def _together(groups: Sequence[Group], lanes: Mapping[str, LanePolicy], cards: int) -> list[Group]:
    """One lane an engine; while cards are too few, the slowest two of the model with the most engines."""
    models = [[replace(group, lanes=(name,)) for name in group.lanes] for group in groups]

    def needed() -> int:
        return sum(policy_of(part.lanes, lanes).tensor_parallel for parts in models for part in parts)

    while needed() > cards:
        most = max(reversed(models), key=len)  # the first model gives way last
        if len(most) < 2:
            break
        slowest = most.pop()
        most[-1] = replace(most[-1], lanes=most[-1].lanes + slowest.lanes)
    return [part for parts in models for part in parts]


def _choose(
    groups: Sequence[Group], lanes: Mapping[str, LanePolicy], free: list[Card]
) -> dict[Group, list[Card]]:
    """Each group's first cards, taken from `free`; cards alike are handed out by rank.

    Where there are too few the last groups have none, whoever chooses first.
    """
    policies = {group: policy_of(group.lanes, lanes) for group in groups}
    needed = itertools.accumulate(policy.tensor_parallel for policy in policies.values())
    served = [group for group, cards in zip(groups, needed, strict=True) if cards <= len(free)]
    chosen: dict[Group, list[Card]] = {group: [] for group in groups}
    for group in sorted(served, key=lambda group: _turn(policies[group])):
        policy = policies[group]
        if _units(free, policy.tensor_parallel):
            chosen[group] += _favourite(policy, free)
            free[:] = [card for card in free if card not in chosen[group]]
    _by_rank(chosen)
    return chosen


def _spread(chosen: dict[Group, list[Card]], lanes: Mapping[str, LanePolicy], free: list[Card]) -> None:
    """Hand out the cards left over."""
    weights: dict[Group, float] = {}
    for group in chosen:
        weights[group] = 2.0 ** -sum(faster.model == group.model for faster in weights)
    while True:
        takers = [group for group in chosen if _units(free, policy_of(group.lanes, lanes).tensor_parallel)]
        if not takers:
            break
        group = min(takers, key=lambda group: len(chosen[group]) / weights[group])
        policy = policy_of(group.lanes, lanes)
        chosen[group] += _favourite(policy, free)
        free[:] = [card for card in free if card not in chosen[group]]
    _by_rank(chosen)


def _join(chosen: dict[Group, list[Card]], lanes: Mapping[str, LanePolicy]) -> None:
    """Put what found no card beside other engines, if their shares of memory allow it."""
    policies = {group: policy_of(group.lanes, lanes) for group in chosen}
    for group in [group for group in chosen if not chosen[group]]:
        for cards in reversed(list(chosen.values())):
            beside = [policies[other] for other in chosen if chosen[other] == cards]
            fits = total_share([policies[group], *beside]) <= MOST_SHARED
            if fits and len(cards) >= policies[group].tensor_parallel:
                chosen[group] = cards
                break


def _by_rank(chosen: dict[Group, list[Card]]) -> None:
    """Number cards alike by the lanes' rank, so that hot has the first ones."""
    for kind in {card.kind for cards in chosen.values() for card in cards}:
        numbers = sorted(card.index for cards in chosen.values() for card in cards if card.kind == kind)
        for cards in chosen.values():
            for place, card in enumerate(cards):
                if card.kind == kind:
                    cards[place] = Card(numbers.pop(0), kind)
    for cards in chosen.values():
        cards.sort(key=lambda card: card.index)


def _units(free: Sequence[Card], size: int) -> list[tuple[Card, ...]]:
    """The free cards in bundles of `size` of one kind, as tensor parallel engines need them."""
    units = []
    for kind in dict.fromkeys(card.kind for card in free):
        alike = [card for card in free if card.kind == kind]
        units += [tuple(alike[start : start + size]) for start in range(0, len(alike) - size + 1, size)]
    return units


def _favourite(policy: EnginePolicy, free: Sequence[Card]) -> tuple[Card, ...]:
    return min(_units(free, policy.tensor_parallel), key=lambda unit: _taste(policy, unit[0]))


def _turn(policy: EnginePolicy) -> int:
    """Who chooses first: FP8 needs one generation of cards, INT8 and INT4 take what nobody else wants."""
    if policy.precision is Precision.FP8:
        return 0
    return 1 if policy.precision in (Precision.INT8, Precision.INT4) else 2


def _taste(policy: EnginePolicy, card: Card) -> tuple[float, ...]:
    """Less is better: FP8 lanes like native FP8, narrow or sharing ones small cards, others fast BF16."""
    native = card.kind.capability >= NATIVE_FP8
    if policy.precision is Precision.FP8:
        return (not native, -card.kind.bandwidth_gb_s, card.index)
    if _turn(policy) == 1 or policy.memory_share <= SMALL_SHARE:
        return (card.kind.memory_mib, native, card.index)
    wide = card.kind.capability >= LEAST_CAPABILITY[Precision.BF16]
    return (not wide, -card.kind.bandwidth_gb_s, card.index)


def _reason(policy: EnginePolicy, cards: Sequence[Card]) -> str:
    if not cards:
        return f"no card is left, or no {policy.tensor_parallel} of one kind"
    capability = min(card.kind.capability for card in cards)
    if policy.precision is Precision.FP8:
        return "FP8 runs natively here" if capability >= NATIVE_FP8 else "no card left has FP8 natively"
    if _turn(policy) == 1 or policy.memory_share <= SMALL_SHARE:
        return "the smallest card that is left"
    if capability < LEAST_CAPABILITY[Precision.BF16]:
        return "no card left has BF16"
    return "the fastest memory left with BF16"


def _engines(
    group: Group, chosen: Mapping[Group, list[Card]], lanes: Mapping[str, LanePolicy], reason: str | None
) -> list[Placement]:
    """One engine for the group, or, alone on its cards, one for each lane where their shares allow it."""
    cards = tuple(chosen[group])
    beside = [other for other in chosen if cards and chosen[other] == chosen[group]]
    parts = [group] if len(beside) > 1 else [replace(group, lanes=(name,)) for name in group.lanes]
    sharing = max(beside, parts, key=len)
    share = total_share(policy_of(part.lanes, lanes) for part in sharing)
    if cards and len(sharing) > 1 and share <= MOST_SHARED:
        told = f"shares the card: the shares of memory add to {share:g}"
        return [Placement(part, cards, told) for part in parts]
    reason = reason or _reason(policy_of(group.lanes, lanes), cards)
    if len(group.lanes) > 1:
        reason = f"one engine for these lanes, for want of cards: {reason}"
    return [Placement(group, cards, reason)]
