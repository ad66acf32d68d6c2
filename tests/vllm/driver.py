"""Drives a vLLM engine with the tiny Llama on a loop of its own."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil

from jobs.domain.policies import EnginePolicy
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from tests.answers import Answer, collect
from tests.vllm.models import TINY_CONTEXT
from trilane.bench.vllm_on_cpu import OPTIONS
from workers.engines.registry import EngineConfig
from workers.engines.vllm import VllmEngine, build

T = TypeVar("T")


class Driver:
    """An engine and its loop."""

    def __init__(self, engine: VllmEngine, runner: asyncio.Runner) -> None:
        self.engine, self._runner = engine, runner

    @classmethod
    @contextmanager
    def started(cls, model: Path, policy: EnginePolicy, **options: Any) -> Iterator["Driver"]:
        """A started engine, which is stopped in the end."""
        with asyncio.Runner() as runner:
            engine = build(config(model, policy, **options))
            runner.run(engine.start())
            yield cls(engine, runner)
            runner.run(engine.stop())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run on the engine's loop."""
        return self._runner.run(work)

    def answer(self, request: GenerationRequest) -> Answer:
        """One request, to its end."""
        return self.run(collect(self.engine, request))


def core_of(engine: VllmEngine) -> psutil.Process:
    """vLLM's core process, a child of this one."""
    manager = engine._llm.engine_core.resources.engine_manager
    return psutil.Process(manager.processes[0].pid)


def config(model: Path, policy: EnginePolicy, **options: Any) -> EngineConfig:
    """An engine's configuration that a CPU starts quickly with; all its sequences are the worker's."""
    return EngineConfig(
        "tiny",
        slots=policy.sequences,
        max_model_len=TINY_CONTEXT,
        model_path=model,
        policy=policy,
        options={**OPTIONS, **options},
    )


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> float:
    """Wait for a condition while the engine runs on; returns the seconds it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < timeout_s, "the condition did not come"
        await asyncio.sleep(0.01)
    return time.monotonic() - started


def ask(content: str = "Tell a story.", priority: int = 5, **sampling: Any) -> GenerationRequest:
    """A request; greedy unless the sampling says otherwise."""
    given = Sampling(**{"temperature": 0.0, "max_tokens": 16} | sampling)
    return GenerationRequest("job", (Message(Role.USER, content),), given, priority)
