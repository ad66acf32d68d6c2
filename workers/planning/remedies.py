"""What would make an engine fit: changes that were tried, each with the setting that makes it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jobs.domain.policies import EnginePolicy, Precision
from workers.planning import memory
from workers.planning.cards import Card
from workers.planning.memory import Memory
from workers.planning.model_shape import ModelShape
from workers.planning.precision import LEAST_CAPABILITY, NATIVE_FP8

_LENGTH_STEP = 1_024
_MOST_SHARE = 0.9  # of a card that one engine has to itself
_TENSOR_PARALLEL = (2, 4, 8)


@dataclass(frozen=True, slots=True)
class Demand:
    """What the cache must have room for, for one lane: sequences at once, each of so many tokens."""

    lane: str
    sequences: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PlannedEngine:
    """An engine on cards like `card`, and the lanes that it serves, the fastest first."""

    demands: tuple[Demand, ...]
    card: Card
    shape: ModelShape
    policy: EnginePolicy
    precision: Precision
    draft: ModelShape | None = None

    @property
    def longest(self) -> Demand:
        """The demand with the longest sequences; the engine's model length is theirs."""
        return max(self.demands, key=lambda demand: demand.tokens)

    @property
    def greediest(self) -> Demand:
        """The demand that needs the most KV cache."""
        return max(self.demands, key=self.needed)

    def needed(self, demand: Demand) -> int:
        """The KV cache that a demand needs on one card, in bytes."""
        return demand.sequences * self._memory(demand.tokens).sequence

    def memory(self) -> Memory:
        """What it needs on each of its cards."""
        return self._memory(self.longest.tokens)

    def fits(self) -> bool:
        """Whether the cache holds each demand, and the cap all of it."""
        needed = self.memory()
        return self.needed(self.greediest) <= needed.cache and needed.used <= needed.cap

    def cut(self, tokens: int) -> "PlannedEngine":
        """The same with no sequence longer than `tokens`."""
        demands = [replace(demand, tokens=min(demand.tokens, tokens)) for demand in self.demands]
        return replace(self, demands=tuple(demands))

    def setting(self, name: str, lane: str | None = None) -> str:
        """The name of a lane's setting; the fastest lane decides what the model is."""
        return f"lane.{lane or self.demands[0].lane}.{name}"

    def _memory(self, tokens: int) -> Memory:
        size = self.card.memory_bytes
        return memory.estimate(self.shape, self.policy, self.precision, tokens, size, self.draft)


def remedies(engine: PlannedEngine) -> list[str]:
    """The changes that make it fit, the least painful first; or what remains where none does."""
    shorter = _length(engine) or _both(engine)
    found = [*_cache(engine), *_share(engine), *_precision(engine), *shorter, *_tensor_parallel(engine)]
    return found or ["nothing simple: take a smaller model, or cards with more memory"]


def _cache(engine: PlannedEngine) -> Sequence[str]:
    if engine.policy.kv_cache_gib is None:
        return ()
    free = replace(engine, policy=replace(engine.policy, kv_cache_gib=None))
    return [f"{engine.setting('engine.kv_cache_gib')} left out"] if free.fits() else ()


def _share(engine: PlannedEngine) -> Sequence[str]:
    return [_named_share(roomy) for roomy in _roomier(engine) if roomy.fits()]


def _roomier(engine: PlannedEngine) -> list[PlannedEngine]:
    if engine.policy.memory_share >= _MOST_SHARE:
        return []
    return [replace(engine, policy=replace(engine.policy, memory_share=_MOST_SHARE))]


def _named_share(engine: PlannedEngine) -> str:
    return f"{engine.setting('engine.memory_share')} = {_MOST_SHARE} (if it has the card to itself)"


def _narrower(engine: PlannedEngine) -> list[PlannedEngine]:
    """The same in the narrower precisions of the card; what is stored narrow already stays as it is."""
    if engine.shape.stored:
        return []
    return [
        replace(engine, precision=precision)
        for precision in (Precision.FP8, Precision.INT4)
        if engine.card.kind.capability >= LEAST_CAPABILITY[precision]
        and memory.weight_bytes(engine.shape, precision) < memory.weight_bytes(engine.shape, engine.precision)
    ]


def _precision(engine: PlannedEngine) -> Sequence[str]:
    return [_named(narrow) for narrow in _narrower(engine) if narrow.fits()][:1]


def _named(engine: PlannedEngine) -> str:
    """The setting of a precision; 8 bits are INT8 where the card computes in it, and FP8 else."""
    setting, checkpoint = engine.setting("engine.precision"), engine.setting("engine.checkpoint")
    if engine.precision is Precision.INT4:
        return f'{setting} = "int4" with {checkpoint} an AWQ or GPTQ one'
    fp8, int8 = f'{setting} = "fp8"', f'"int8" with {checkpoint} a W8A8 or 8-bit GPTQ one'
    if engine.card.kind.capability >= NATIVE_FP8:
        return f"{fp8} (or {int8})"
    return f'{setting} = {int8} (or "fp8", weight-only here)'


def _length(engine: PlannedEngine) -> Sequence[str]:
    longest = engine.longest
    for tokens in range(_LENGTH_STEP * ((longest.tokens - 1) // _LENGTH_STEP), 0, -_LENGTH_STEP):
        if engine.cut(tokens).fits():
            lanes = dict.fromkeys(demand.lane for demand in engine.demands if demand.tokens > tokens)
            return [" and ".join(f"{engine.setting('max_model_len', lane)} = {tokens}" for lane in lanes)]
    return ()


def _tensor_parallel(engine: PlannedEngine) -> Sequence[str]:
    for size in _TENSOR_PARALLEL:
        wider = replace(engine, policy=replace(engine.policy, tensor_parallel=size))
        if size > engine.policy.tensor_parallel and engine.shape.heads % size == 0 and wider.fits():
            kind = engine.card.kind.name
            return [f"{engine.setting('engine.tensor_parallel')} = {size} (an engine on {size} of {kind})"]
    return ()


def _both(engine: PlannedEngine) -> list[str]:
    """A larger share or a narrower precision, together with a shorter length."""
    halves = [(_named_share(roomy), roomy) for roomy in _roomier(engine)]
    halves += [(_named(narrow), narrow) for narrow in _narrower(engine)]
    return [
        f"{name}, together with {length}"
        for name, half in halves
        if not half.fits()
        for length in _length(half)
    ]
