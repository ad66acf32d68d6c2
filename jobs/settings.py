"""Settings in small groups, read once at the edges: environment over `trilane.toml` over the defaults."""

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, SecretStr, TypeAdapter, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from jobs.domain.lanes import LANES, LanePolicy, slug

_LANE: TypeAdapter[LanePolicy] = TypeAdapter(LanePolicy)
# What moves by itself, with the bounds that it moves between.
_BOUNDS = {"limit": {"limit_min", "limit_max"}, "window_ms": {"window_max_ms"}}


class SettingsError(ValueError):
    """A setting is missing or wrong; the message names it and the remedy."""


class _Group(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class LeaseSettings(_Group):
    """How long a claim protects a job, and how failures are retried. Seconds."""

    lease_s: float = Field(10.0, gt=0, le=3_600)
    grace_s: float = Field(20.0, ge=0, description="how long a stopping worker finishes what it has")
    retry_base_s: float = Field(1.0, ge=0)
    retry_cap_s: float = Field(60.0, ge=0)


class FeedSettings(_Group):
    """How announcements are kept bounded."""

    window: int = Field(1_000, ge=1, description="unclaimed announcements in one queue at most")
    message_ids: int = Field(32, ge=1, le=1_000, description="job ids in one message at most")
    lost_after_s: float = Field(10.0, gt=0, description="age of a later claim that proves a loss")
    backoff_s: float = Field(5.0, gt=0, description="first wait before a job is announced again")


class ApiSettings(_Group):
    """The HTTP API's address and limits."""

    host: str = "127.0.0.1"
    port: int = Field(8080, ge=0, le=65_535)
    max_body_bytes: int = Field(1_048_576, ge=1_024)
    max_messages: int = Field(256, ge=1)
    db_threads: int = Field(8, ge=1)
    requests_per_minute: int | None = Field(None, ge=1, description="of each tenant; None: no bound")
    tokens_per_minute: int | None = Field(None, ge=1, description="of each tenant, prompts and answers")


class WebhookSettings(_Group):
    """Delivery of callbacks. `allow` opens networks (CIDR) that are refused as targets by default."""

    allow: tuple[str, ...] = ()
    timeout_s: float = Field(15.0, gt=0)
    concurrency: int = Field(16, ge=1, description="deliveries at once in one process")
    per_host: int = Field(4, ge=1, description="deliveries at once to one receiver")
    retry_scale: float = Field(1.0, gt=0, description="shortens the retry schedule, for tests")
    disable_after_days: float = Field(5.0, gt=0, description="of failures only, an endpoint is disabled")


class RetentionSettings(_Group):
    """How long ended jobs are kept. Days."""

    days: float = Field(30.0, gt=0)


class EngineSettings(_Group):
    """Which engine a worker loads when its command names none, and where the model's file lies."""

    name: str = "llamacpp"
    model_path: Path | None = None
    threads: int | None = Field(None, ge=1)
    warm_up: bool | None = Field(None, description="before a worker is ready; by default with vllm only")
    options: dict[str, Any] = Field(default_factory=dict, description="what only one engine knows")

    def warms_up(self, engine: str) -> bool:
        """Whether an engine of this name is run warm before its worker is ready."""
        return engine == "vllm" if self.warm_up is None else self.warm_up


class ModelSettings(_Group):
    """A further model: where its weights lie, and the lanes that serve it."""

    model_path: Path | None = None  # None: the engine finds them by the model's name
    lanes: tuple[str, ...] = Field(tuple(LANES), min_length=1)


class MpsShare(_Group):
    """What a worker gets of a card that it shares under CUDA MPS; None: no bound of its own."""

    active_thread_percentage: int | None = Field(None, ge=1, le=100, description="of the card's cores")
    device_memory_gib: float | None = Field(None, gt=0, description="on each of its cards, enforced")
    low_priority: bool = Field(False, description="other workers' kernels go first")


class WorkerPlacement(_Group):
    """One worker process of `trilane up`: its lanes, the cards that it sees, and the engine on them."""

    lanes: tuple[str, ...] = Field(min_length=1)
    gpus: tuple[Annotated[int, Field(ge=0)], ...] = ()  # numbers as nvidia-smi counts; (): no card
    model: str | None = None  # None: the setting model
    engine: str | None = None  # None: the setting engine.name
    model_path: Path | None = None  # None: the model's own
    mps: MpsShare | None = None


class Settings(BaseSettings):
    """Everything that can be set, by `TRILANE_...` variables or in `trilane.toml`."""

    model_config = SettingsConfigDict(
        env_prefix="TRILANE_", env_nested_delimiter="__", frozen=True, extra="ignore"
    )

    database_url: str = Field("", repr=False)  # both carry passwords
    redis_url: str = Field("", repr=False)
    secret_key: SecretStr | None = None
    model: str = "SmolLM2-135M-Instruct"
    models: dict[str, ModelSettings] = Field(default_factory=dict, description="served beside the first")
    lane: dict[str, dict[str, Any]] = Field(default_factory=dict, description="overrides of lane policies")
    lease: LeaseSettings = LeaseSettings()
    feed: FeedSettings = FeedSettings()
    api: ApiSettings = ApiSettings()
    webhooks: WebhookSettings = WebhookSettings()
    retention: RetentionSettings = RetentionSettings()
    engine: EngineSettings = EngineSettings()
    workers: tuple[WorkerPlacement, ...] = ()

    @property
    def lanes(self) -> Mapping[str, LanePolicy]:
        """The lanes in rank order, the defaults under the overrides."""
        return {name: _overridden(policy, self.lane.get(name, {})) for name, policy in LANES.items()}

    @property
    def served(self) -> tuple[str, ...]:
        """The models that are served, the first one first."""
        return (self.model, *self.models)

    def lanes_of(self, model: str) -> Mapping[str, LanePolicy]:
        """The lanes that serve a model, in rank order."""
        further = self.models.get(model)
        return {name: lane for name, lane in self.lanes.items() if further is None or name in further.lanes}

    def further(self, model: str | None) -> str | None:
        """The model as its queues name it: None for the first one, whose queues have the plain names."""
        return model if model in self.models else None

    def of_model(self, model: str) -> "Settings":
        """The settings of a worker that serves this model."""
        further = self.models.get(model)
        if further is None:
            return self
        engine = self.engine.model_copy(update={"model_path": further.model_path})
        return self.model_copy(update={"model": model, "engine": engine})

    def placement(
        self, lanes: Iterable[str], gpus: Iterable[int], model: str | None = None
    ) -> WorkerPlacement:
        """The entry of `workers` for exactly these lanes, cards and model, else one that says no more."""
        wanted = WorkerPlacement(lanes=tuple(lanes), gpus=tuple(gpus), model=model)
        return next((entry for entry in self.workers if self.place(entry) == self.place(wanted)), wanted)

    def place(self, entry: WorkerPlacement) -> tuple[frozenset[str], tuple[int, ...], str]:
        """What tells one entry of `workers` from another."""
        return frozenset(entry.lanes), entry.gpus, entry.model or self.model

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, then the environment, then the file named by `TRILANE_CONFIG` (or `trilane.toml`)."""
        file = Path(os.environ.get("TRILANE_CONFIG", "trilane.toml"))
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=file)


def load(**given: Any) -> Settings:
    """Read the settings; what is `given` wins. Raises `SettingsError` naming each wrong setting."""
    try:
        settings = Settings(**given)
        _ = settings.lanes
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise SettingsError(f"setting {name}: {first['msg']}") from None
    unknown = sorted(set(settings.lane) - set(LANES))
    if unknown:
        raise SettingsError(f"setting lane.{unknown[0]}: no such lane; the lanes are {', '.join(LANES)}")
    _check_models(settings)
    for number, entry in enumerate(settings.workers):
        _check_placement(f"setting workers.{number}", settings, entry, settings.workers[:number])
    return settings


def require_servers(settings: Settings) -> None:
    """Raise `SettingsError` unless both the database and Redis are named."""
    for name in ("database_url", "redis_url"):
        if not getattr(settings, name):
            raise SettingsError(f"setting {name} is missing: set TRILANE_{name.upper()}, or run `trilane up`")


def _check_models(settings: Settings) -> None:
    """Raise `SettingsError` where a further model has no lane, or its queues would be another's."""
    named: dict[str, str] = {}
    for name, further in settings.models.items():
        where = f"setting models.{name}"
        _check_lanes(where, further.lanes, LANES)
        if name == settings.model:
            raise SettingsError(f"{where}: this is the setting model already: take one of them out")
        other = named.setdefault(slug(name), name)
        if other != name or not slug(name):
            same = f"those of {other} are called the same" if slug(name) else "it has no letter and no digit"
            raise SettingsError(f"{where}: its queues cannot be named, {same}: give it another name")


def _check_lanes(where: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = [lane for lane in given if lane not in known]
    if unknown:
        raise SettingsError(f"{where}.lanes: no lane {unknown[0]!r}; the lanes are {', '.join(known)}")


def _check_placement(
    where: str, settings: Settings, entry: WorkerPlacement, before: Sequence[WorkerPlacement]
) -> None:
    """Raise `SettingsError` where an entry cannot be placed, alone or beside those before it."""
    _check_lanes(where, entry.lanes, LANES)
    model = entry.model or settings.model
    if model not in settings.served:
        raise SettingsError(f"{where}.model: no model {model!r}; served are {', '.join(settings.served)}")
    _check_lanes(f"{where}: of {model}", entry.lanes, settings.lanes_of(model))
    for name, values in (("lanes", entry.lanes), ("gpus", entry.gpus)):
        if len(set(values)) < len(values):
            raise SettingsError(f"{where}.{name}: one is named twice: name each once")
    if entry.mps and not entry.gpus:
        raise SettingsError(f"{where}.mps: there is no card to share: name it in gpus, or take mps out")
    for number, other in enumerate(before):
        if settings.place(other) == settings.place(entry) and other != entry:
            raise SettingsError(
                f"{where}: has the lanes and cards of workers.{number} but differs: make the two the same"
            )
        shared = set(other.gpus) & set(entry.gpus)
        if shared and (other.mps is None) != (entry.mps is None):
            raise SettingsError(
                f"{where}.mps: card {min(shared)} is shared with workers.{number}, and MPS holds for all of a"
                " card's workers or none: give both an mps (mps = {} sets no bounds), or neither"
            )


def _overridden(policy: LanePolicy, changes: Mapping[str, Any]) -> LanePolicy:
    """The policy with the changes laid over it, groups field by field. Raises `SettingsError`."""
    where = f"setting lane.{policy.name}"
    given = _merged(LanePolicy, dataclasses.asdict(policy), changes, where)
    for name, bounds in _BOUNDS.items():
        if name in changes and not bounds & set(changes):
            given |= dict.fromkeys(bounds)  # who gives a value alone fixes it
    try:
        return _LANE.validate_python(given)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join((where, *(str(part) for part in first["loc"])))
        raise SettingsError(f"{path}: {first['msg'].removeprefix('Value error, ')}") from None


def _merged(
    kind: type, defaults: Mapping[str, Any] | None, changes: Mapping[str, Any], where: str
) -> dict[str, Any]:
    hints = get_type_hints(kind)
    values = dict(defaults or {})
    for name, value in changes.items():
        if name not in hints or name in ("name", "kinds"):
            known = ", ".join(sorted(hints.keys() - {"name", "kinds"}))
            raise SettingsError(f"{where}.{name}: no such lane setting; known are {known}")
        kinds = (hints[name], *get_args(hints[name]))
        group = next((part for part in kinds if isinstance(part, type) and is_dataclass(part)), None)
        if group is not None and isinstance(value, Mapping):
            value = _merged(group, values.get(name), value, f"{where}.{name}")
        values[name] = value
    return values
