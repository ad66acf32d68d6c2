"""The parts of a lane's policy: its engine, the guards on its stream, its windows and its warm-up."""

from dataclasses import dataclass, field
from enum import StrEnum


class Precision(StrEnum):
    """The format of the linear layers' weights; `auto`: the checkpoint's own, FP16 on a card without it."""

    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"


class Scheduling(StrEnum):
    """The order in which the engine takes its requests, by vLLM's names."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class SpeculationMethod(StrEnum):
    """Where the candidates come from: the prompt's own n-grams, or a smaller model."""

    NGRAM = "ngram"
    DRAFT_MODEL = "draft_model"


def _check(name: str, value: float, least: float, most: float | None = None) -> None:
    if value < least or (most is not None and value > most):
        bounds = f"{least} or more" if most is None else f"{least} to {most}"
        raise ValueError(f"{name}: {value} is out of range: give {bounds}")


@dataclass(frozen=True, slots=True)
class SpeculationPolicy:
    """Speculative decoding: `tokens` candidates a step, none in steps of more than `max_batch` sequences.

    Where fewer than `min_acceptance` of the candidates are accepted, the lane goes on without at its next
    idle restart.
    """

    method: SpeculationMethod = SpeculationMethod.NGRAM
    tokens: int = 2
    draft_model: str | None = None
    max_batch: int | None = None
    min_acceptance: float = 0.6

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        _check("tokens", self.tokens, 1, 16)
        _check("min_acceptance", self.min_acceptance, 0, 1)
        if self.method is SpeculationMethod.DRAFT_MODEL and not self.draft_model:
            raise ValueError("draft_model: missing, and method draft_model needs one: name the smaller model")


@dataclass(frozen=True, slots=True)
class EnginePolicy:
    """What a lane's engine is given; what an engine does not know, it ignores. Lengths are in tokens.

    `memory_share` is the part of each card that weights, activations and KV cache may take together;
    `kv_cache_gib` (GiB) sets the cache itself instead. `checkpoint` replaces the model's weights on this
    lane, as INT8 on a dense model needs. `quantization` and `layers` (a pattern of layer names -> precision)
    go beyond `precision`.
    """

    sequences: int = 8  # in the engine at once; the lane's limit admits that many or fewer
    batched_tokens: int = 8_192  # in one step
    precision: Precision = Precision.AUTO
    checkpoint: str | None = None
    quantization: str | None = None
    layers: dict[str, Precision] = field(default_factory=dict)
    kv_cache_dtype: str = "auto"
    memory_share: float = 0.85
    kv_cache_gib: float | None = None
    chunked_prefill: bool = True
    long_prefill_tokens: int | None = None  # longer prompts are prefilled in pieces of so many
    scheduling: Scheduling = Scheduling.FCFS
    prefix_caching: bool = True
    speculation: SpeculationPolicy | None = None
    tensor_parallel: int = 1
    enforce_eager: bool = False

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        for name in ("sequences", "batched_tokens", "tensor_parallel"):
            _check(name, getattr(self, name), 1)
        _check("memory_share", self.memory_share, 0.05, 1)
        if self.kv_cache_gib is not None:
            _check("kv_cache_gib", self.kv_cache_gib, 0.01)
        if self.long_prefill_tokens is not None:
            _check("long_prefill_tokens", self.long_prefill_tokens, 1)


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """What is watched in a lane's stream. The files hold one phrase a line.

    `repetition` ends a text whose last `repetition_window` tokens hold fewer than `repetition_distinct`
    different ones. Phrases of `banned_file` never leave the lane. Those of `favoured_file` get
    `favoured_bias` on each of their tokens.
    """

    repetition: bool = True
    repetition_window: int = 10
    repetition_distinct: int = 5
    banned_file: str | None = None
    favoured_file: str | None = None
    favoured_bias: float = 2.0

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        _check("repetition_window", self.repetition_window, 2)
        _check("repetition_distinct", self.repetition_distinct, 1, self.repetition_window)
        _check("favoured_bias", self.favoured_bias, -100, 100)


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """How a document longer than the lane is cut: windows of `tokens`, `overlap` of them shared."""

    tokens: int = 2_048
    overlap: int = 512

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        _check("tokens", self.tokens, 16)
        _check("overlap", self.overlap, 0, self.tokens // 2)


@dataclass(frozen=True, slots=True)
class WarmUpPolicy:
    """What runs through a fresh engine before it takes jobs: every batch size with every prompt length.

    `templates_file` holds one JSON object a line with `messages`; those run through once each, so that their
    prefix blocks are cached.
    """

    batches: tuple[int, ...] = (1, 4, 8)
    prompt_tokens: tuple[int, ...] = (512, 1_024, 2_048)
    templates_file: str | None = None

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        for name in ("batches", "prompt_tokens"):
            for value in getattr(self, name):
                _check(name, value, 1)


@dataclass(frozen=True, slots=True)
class ShadowPolicy:
    """The part (0 to 1) of a lane's jobs that also runs on another lane, whose answer is the reference."""

    share: float = 0.0
    reference: str = "hot"

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        _check("share", self.share, 0, 1)
