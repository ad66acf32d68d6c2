"""The engines by name: one table entry each, imported only when it is asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from jobs.domain.policies import EnginePolicy
from workers.engines.seam import Engine

# name -> the module whose `build(config)` makes the engine
ENGINES: Mapping[str, str] = {
    "llamacpp": "workers.engines.llamacpp",
    "sim": "workers.engines.sim",
    "vllm": "workers.engines.vllm",
}


class UnknownEngine(ValueError):
    """No engine of that name; the message lists those there are."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What a worker tells its engine: `slots` sequences at once, each of at most `max_model_len` tokens.

    `policy` holds the levers of the lanes' engine. `threads` is for engines on the CPU (None: all cores);
    `options` is what only one engine knows.
    """

    model: str
    slots: int
    max_model_len: int
    model_path: Path | None = None
    threads: int | None = None
    policy: EnginePolicy = field(default_factory=EnginePolicy)
    options: Mapping[str, Any] = field(default_factory=dict)


def build(name: str, config: EngineConfig) -> Engine:
    """The engine `name`, not yet started. Raises `UnknownEngine`, or what the engine itself refuses."""
    if name not in ENGINES:
        raise UnknownEngine(f"unknown engine {name!r}; there are: {', '.join(sorted(ENGINES))}")
    make: Callable[[EngineConfig], Engine] = import_module(ENGINES[name]).build
    return make(config)
