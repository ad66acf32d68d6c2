"""Which lane's engine sits on which cards: pinned by the operator, or by rules that are told in a line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jobs.domain.lanes import LanePolicy
from jobs.domain.policies import EnginePolicy, Precision
from workers.planning.cards import Card
from workers.planning.merging import merged
from workers.planning.precision import LEAST_CAPABILITY, NATIVE_FP8

Pin = tuple[Sequence[str], Sequence[int]]  # lanes, and the numbers of the cards that their engine has

SMALL_SHARE = 0.5  # of a card's memory: who asks for no more means to share it
MOST_SHARED = 0.95  # of one card's memory, by all engines on it: each has a context of its own besides


@dataclass(frozen=True, slots=True)
class Placement:
    """Lanes that one engine serves, the cards that each hold such an engine, or a part of it, and why."""

    lanes: tuple[str, ...]
    cards: tuple[Card, ...]
    reason: str


def place(
    lanes: Mapping[str, LanePolicy],
    cards: Sequence[Card],
    pinned: Sequence[Pin] = (),
) -> list[Placement]:
    """Every lane of `lanes` (in rank order) on cards, first what is `pinned` by the operator.

    The rules for what is not pinned: each lane gets an engine and a card of its own; where there are too few
    cards, the slowest lanes come together on the last one. FP8 lanes choose first, then INT8 and INT4 lanes,
    then the others (`_taste`). Each card left over goes to the lane with the fewest cards for its weight;
    weights halve from rank to rank (4, 2, 1 for three lanes). A lane that finds no card has none.
    """
    numbers = {number for _, gpus in pinned for number in gpus}
    placed = [_pin([name for name in lanes if name in names], gpus, cards) for names, gpus in pinned]
    free = [card for card in cards if card.index not in numbers]
    covered = {name for placement in placed for name in placement.lanes}
    groups = _groups([name for name in lanes if name not in covered], lanes, len(free))
    chosen = _choose(groups, lanes, free)
    _spread(chosen, lanes, free)
    alike = len({card.kind for card in cards}) == 1 and len(groups) > 1
    shares = " : ".join(str(len(chosen[group])) for group in groups)
    for group in groups:
        reason = f"the cards are alike, and go {shares} by rank" if alike and chosen[group] else None
        placed += _engines(group, chosen[group], lanes, reason)
    ranks = list(lanes)
    return sorted(placed, key=lambda placement: ranks.index(placement.lanes[0]))


def policy_of(names: Sequence[str], lanes: Mapping[str, LanePolicy]) -> EnginePolicy:
    """The policy of the engine that serves these lanes together."""
    return merged([lanes[name] for name in names])


def _pin(names: Sequence[str], gpus: Sequence[int], cards: Sequence[Card]) -> Placement:
    found = tuple(card for card in cards if card.index in gpus)
    return Placement(tuple(names), found, "pinned by the operator")


def _groups(names: list[str], lanes: Mapping[str, LanePolicy], cards: int) -> list[tuple[str, ...]]:
    """The lanes by engine: one each, the slowest together while the cards are too few."""
    groups: list[tuple[str, ...]] = [(name,) for name in names]

    def needed() -> int:
        return sum(policy_of(group, lanes).tensor_parallel for group in groups)

    while len(groups) > 1 and needed() > cards:
        slowest = groups.pop()
        groups[-1] += slowest
    return groups


def _choose(
    groups: Sequence[tuple[str, ...]], lanes: Mapping[str, LanePolicy], free: list[Card]
) -> dict[tuple[str, ...], list[Card]]:
    """Each group's first cards, taken from `free`; cards alike are handed out by rank."""
    turns = {group: _turn(policy_of(group, lanes)) for group in groups}
    chosen: dict[tuple[str, ...], list[Card]] = {group: [] for group in groups}
    for group in sorted(groups, key=lambda group: turns[group]):
        policy = policy_of(group, lanes)
        if _units(free, policy.tensor_parallel):
            chosen[group] += _favourite(policy, free)
            free[:] = [card for card in free if card not in chosen[group]]
    _by_rank(chosen)
    return chosen


def _spread(
    chosen: dict[tuple[str, ...], list[Card]], lanes: Mapping[str, LanePolicy], free: list[Card]
) -> None:
    """Hand out the cards left over."""
    weights = {group: 2.0**-rank for rank, group in enumerate(chosen)}
    while True:
        takers = [group for group in chosen if _units(free, policy_of(group, lanes).tensor_parallel)]
        if not takers:
            break
        group = min(takers, key=lambda group: len(chosen[group]) / weights[group])
        policy = policy_of(group, lanes)
        chosen[group] += _favourite(policy, free)
        free[:] = [card for card in free if card not in chosen[group]]
    _by_rank(chosen)


def _by_rank(chosen: dict[tuple[str, ...], list[Card]]) -> None:
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
    group: tuple[str, ...], cards: Sequence[Card], lanes: Mapping[str, LanePolicy], reason: str | None
) -> list[Placement]:
    """One engine for the group, or one for each of its lanes where their shares of memory allow it."""
    shares = [lanes[name].engine.memory_share for name in group]
    if len(group) > 1 and sum(shares) <= MOST_SHARED:
        return [
            Placement((name,), tuple(cards), f"shares the card: the shares of memory add to {sum(shares):g}")
            for name in group
        ]
    reason = reason or _reason(policy_of(group, lanes), cards)
    if len(group) > 1:
        reason = f"one engine for these lanes, for want of cards: {reason}"
    return [Placement(group, tuple(cards), reason)]
