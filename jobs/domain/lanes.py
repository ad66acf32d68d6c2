"""The lanes: their policies, the rule that routes a request to one, and the names of their queues."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from jobs.domain.policies import (
    EnginePolicy,
    GuardPolicy,
    Precision,
    Scheduling,
    ShadowPolicy,
    WarmUpPolicy,
    WindowPolicy,
)
from jobs.domain.windows import most_tokens


class Kind(StrEnum):
    """What a job is for; each kind has a lane of its own."""

    CHAT = "chat"
    TICKET = "ticket"
    REPORT = "report"


@dataclass(frozen=True, slots=True)
class LanePolicy:
    """How one lane treats its work. Lengths are in tokens, the mapping's order is the lanes' rank."""

    name: str
    kinds: frozenset[Kind]
    objective_ms: int | None  # P99 end to end; None: the deadline is all that counts
    routed_tokens: int | None  # prompts up to this length are this lane's own; None: no upper bound
    max_model_len: int
    limit: int  # jobs admitted at once; where the lane adapts, at first
    window_ms: int  # how long a busy engine's gate gathers before it admits; where it adapts, at least
    limit_min: int | None = None  # None: the limit does not move down
    limit_max: int | None = None  # None: the limit does not move up
    window_max_ms: int | None = None  # None: the window does not move
    work_conserving: bool = False  # never hold a job back while a slot is free
    deadline_s: int = 86_400
    time_limit_s: int = 600  # one attempt's own bound
    niceness: int = 0  # on a CPU, the lane's compute priority
    engine: EnginePolicy = field(default_factory=EnginePolicy)
    guards: GuardPolicy = field(default_factory=GuardPolicy)
    windows: WindowPolicy | None = None  # None: what is too long for the lane is refused
    warm_up: WarmUpPolicy = field(default_factory=WarmUpPolicy)
    shadow: ShadowPolicy = field(default_factory=ShadowPolicy)

    def __post_init__(self) -> None:
        """Raise `ValueError` naming the field that is out of range."""
        for name in ("max_model_len", "limit", "deadline_s", "time_limit_s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be 1 or more")
        for name in ("objective_ms", "routed_tokens", "window_ms", "niceness"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name}: must be 0 or more")
        if not 1 <= self.least_limit <= self.limit <= self.most_limit:
            raise ValueError(
                f"limit: {self.limit} does not lie between limit_min {self.limit_min}"
                f" and limit_max {self.limit_max}"
            )
        if self.window_max_ms is not None and self.window_max_ms < self.window_ms:
            raise ValueError(f"window_max_ms: {self.window_max_ms} is less than window_ms {self.window_ms}")

    @property
    def least_limit(self) -> int:
        """The fewest jobs that the lane admits at once."""
        return self.limit if self.limit_min is None else self.limit_min

    @property
    def most_limit(self) -> int:
        """The most jobs that the lane ever admits at once."""
        return self.limit if self.limit_max is None else self.limit_max


LANES: Mapping[str, LanePolicy] = {
    policy.name: policy
    for policy in (
        LanePolicy(
            "hot",
            frozenset({Kind.CHAT}),
            objective_ms=300,
            routed_tokens=512,
            max_model_len=4_096,
            limit=8,
            window_ms=50,
            work_conserving=True,
            time_limit_s=120,
            engine=EnginePolicy(8, batched_tokens=4_096),
            guards=GuardPolicy(repetition=False),
        ),
        LanePolicy(
            "warm",
            frozenset({Kind.TICKET}),
            objective_ms=800,
            routed_tokens=2_048,
            max_model_len=8_192,
            limit=8,
            window_ms=50,
            limit_min=4,
            limit_max=16,
            window_max_ms=200,
            time_limit_s=300,
            niceness=5,
            engine=EnginePolicy(16, precision=Precision.FP8, scheduling=Scheduling.PRIORITY),
            warm_up=WarmUpPolicy(batches=(1, 4, 8, 16)),
        ),
        LanePolicy(
            "cold",
            frozenset({Kind.REPORT}),
            objective_ms=None,
            routed_tokens=None,
            max_model_len=32_768,
            limit=2,
            window_ms=500,
            time_limit_s=3_600,
            niceness=19,
            engine=EnginePolicy(
                8, precision=Precision.INT8, memory_share=0.5, scheduling=Scheduling.PRIORITY
            ),
            windows=WindowPolicy(),
        ),
    )
}

ALWAYS_SLOWEST_TOKENS = 5_120  # from here on a prompt is the slowest lane's, whatever the request names

BANDS = ("urgent", "normal", "low")
DEFAULT_PRIORITY = 5
_BAND_STARTS = (0, 3, 7)


# Sampling parameters that vLLM refuses while it decodes speculatively.
NOT_WITH_SPECULATION = ("logit_bias", "min_p")


class ParameterRefused(ValueError):
    """The lane speculates, which `parameter` does not go with; `fits` names one that takes it, if any."""

    def __init__(self, parameter: str, lane: str, fits: str | None) -> None:
        self.parameter, self.lane, self.fits = parameter, lane, fits
        remedy = f"send it to the {fits} lane" if fits else "leave it out"
        super().__init__(f"lane {lane} decodes speculatively, which does not go with {parameter}: {remedy}")


class PromptTooLong(ValueError):
    """The prompt does not fit the lane: `limit` is that lane's, `fits` names one that takes it, if any."""

    def __init__(self, tokens: int, lane: str, limit: int, fits: str | None) -> None:
        self.tokens, self.lane, self.limit, self.fits = tokens, lane, limit, fits
        remedy = f"send it to the {fits} lane" if fits else "shorten it"
        super().__init__(
            f"prompt and answer need {tokens} tokens, lane {lane} takes {limit} at most: {remedy}"
        )


def band_of(priority: int) -> str:
    """The band of a priority 0-9, 0 the most urgent: 0-2 urgent, 3-6 normal, 7-9 low."""
    return BANDS[sum(priority >= start for start in _BAND_STARTS) - 1]


def lane_of_kind(lanes: Mapping[str, LanePolicy], kind: Kind) -> str:
    """The kind's own lane; the slowest where no lane claims the kind."""
    return next((name for name, lane in lanes.items() if kind in lane.kinds), list(lanes)[-1])


def lane_of_length(lanes: Mapping[str, LanePolicy], prompt_tokens: int) -> str:
    """The first lane that counts prompts of this length as its own."""
    if prompt_tokens < ALWAYS_SLOWEST_TOKENS:
        for name, lane in lanes.items():
            if lane.routed_tokens is None or prompt_tokens <= lane.routed_tokens:
                return name
    return list(lanes)[-1]


def effective(policy: LanePolicy) -> EnginePolicy:
    """The lane's engine as it is started: without speculation where phrases are favoured."""
    return replace(policy.engine, speculation=None) if policy.guards.favoured_file else policy.engine


def route(
    lanes: Mapping[str, LanePolicy],
    kind: Kind,
    prompt_tokens: int,
    max_tokens: int,
    named: str | None = None,
    *,
    given: Sequence[str] = (),
    windows: bool = True,
) -> str:
    """The lane of a request: the one it names, else the slower of its kind's and its length's.

    Where that does not take the request, the first slower lane that does: whole, or else, with `windows`, in
    windows. `given` names the sampling parameters; those that do not go with speculation lead past lanes that
    speculate. Raises `ParameterRefused` where only such lanes are left, or one is named; `PromptTooLong`
    where the prompt and the answer asked for pass the lane's model length, or where a faster lane than the
    slowest is named for a prompt of `ALWAYS_SLOWEST_TOKENS` and more.
    """
    ranks = list(lanes)
    own = max(lane_of_kind(lanes, kind), lane_of_length(lanes, prompt_tokens), key=ranks.index)
    lane = named or own
    forced = prompt_tokens >= ALWAYS_SLOWEST_TOKENS
    candidates = ranks[-1:] if forced else ranks[ranks.index(lane) :]
    long_enough = [name for name in candidates if prompt_tokens + max_tokens <= lanes[name].max_model_len]
    if windows and not long_enough:
        long_enough = [name for name in candidates if _windowed(lanes[name], prompt_tokens, max_tokens)]
    refused = next((name for name in NOT_WITH_SPECULATION if name in given), None)
    fits = next((name for name in long_enough if not (refused and _speculates(lanes[name]))), None)
    if fits is not None and (fits == lane or named is None):
        return fits
    if refused and long_enough and (fits is None or long_enough[0] == lane):
        raise ParameterRefused(refused, long_enough[0], fits)
    if forced and lane != ranks[-1]:
        raise PromptTooLong(prompt_tokens, lane, ALWAYS_SLOWEST_TOKENS - 1, fits)
    cut = lanes[lane].windows if windows else None
    if cut is not None and prompt_tokens > most_tokens(cut):
        raise PromptTooLong(prompt_tokens, lane, most_tokens(cut), fits)
    raise PromptTooLong(prompt_tokens + max_tokens, lane, lanes[lane].max_model_len, fits)


def _speculates(policy: LanePolicy) -> bool:
    return effective(policy).speculation is not None


def _windowed(policy: LanePolicy, prompt_tokens: int, max_tokens: int) -> bool:
    """Whether the lane answers this in windows."""
    if policy.windows is None or policy.windows.tokens + max_tokens > policy.max_model_len:
        return False
    return prompt_tokens <= most_tokens(policy.windows)


def slug(model: str) -> str:
    """A model's name as it may stand in a queue's name: lower case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")


def queue_name(lane: str, priority: int, model: str | None = None) -> str:
    """`lane.band`, and `lane.band.model` for a model other than the lane's first."""
    base = f"{lane}.{band_of(priority)}"
    return f"{base}.{slug(model)}" if model else base


def parse_queue(queue: str) -> tuple[str, str, str | None]:
    """A queue's lane, band and model slug (None for the lane's first model)."""
    lane, band, *rest = queue.split(".", 2)
    return lane, band, rest[0] if rest else None
