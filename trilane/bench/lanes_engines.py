"""The engines of the lanes' benchmark: simulated ones by their precision's fitted profile, or real ones."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial

from jobs import gguf
from jobs.domain.policies import EnginePolicy, Precision
from jobs.model_files import smollm2_path
from jobs.settings import EngineSettings, Settings
from trilane.bench import vllm_on_cpu
from trilane.bench.lanes_plan import Lanes
from trilane.bench.lanes_prompts import Prompts
from trilane.stack import StackError
from workers.engines import registry
from workers.engines.seam import Engine
from workers.engines.sim import SimEngine
from workers.engines.sim_curves import FP16, INT8, LongWork, a100
from workers.planning import cards as found_cards

STREAM_INTERVAL = 32  # of a simulated engine: fewer chunks, less to compute, the same times
KV_CACHE_GIB = 1.0  # of a real engine here, where several share one machine
TEMPLATE_TOKENS = 128  # room for what a real model's template puts around a prompt
_CONTROL = 3  # llama.cpp's type of the tokens that stand for no text (enum llama_token_type in llama.h)

Compute = Callable[[float], Awaitable[None]]  # takes a step's seconds, returns when the card has done them
Make = Callable[[Lanes, int], Engine]  # the engine of a worker of these lanes, on the card of this number
MakeOnPart = Callable[[Lanes, int, Compute], Engine]


@dataclass(frozen=True, slots=True)
class Engines:
    """How engines are made, and their prompts; `measured` ones are counted by each engine at its start.

    `make_on_part` makes one that computes on a part of its card; None where it would be a real card's.
    """

    make: Make
    prompts: Prompts
    measured: bool
    make_on_part: MakeOnPart | None = None


def simulated(long_work: LongWork) -> Engines:
    """Simulated engines; `long_work` tells how the slowdown that it was measured to cause is read."""
    make = partial(_simulated_engine, long_work)
    return Engines(make, Prompts(), measured=False, make_on_part=make)


def _simulated_engine(
    long_work: LongWork, lanes: Lanes, card: int, compute: Compute | None = None
) -> SimEngine:
    """An A100 with the engine of the first of `lanes`, in the running loop's time.

    INT8 has a profile of its own; no other precision than FP16 was measured, so the rest runs as FP16.
    """
    policy = _policy(lanes)
    profile = replace(
        a100(INT8 if policy.precision is Precision.INT8 else FP16, long_work),
        slots=places(lanes),
        max_model_len=_model_len(lanes),
        max_batched_tokens=policy.batched_tokens,
        long_prefill_tokens=policy.long_prefill_tokens,
        scheduling=policy.scheduling,
        seed=card,
        stream_interval=STREAM_INTERVAL,
    )
    return SimEngine("sim", profile, now=asyncio.get_running_loop().time, compute=compute)


def places(lanes: Lanes) -> int:
    """How many requests of these lanes are in their engine at most."""
    return max(policy.most_limit for policy in lanes.values())


def real_cards(name: str) -> int:
    """How many there are of a real engine unless told otherwise; vLLM on GPUs gets no more than that."""
    return 1 if name == "vllm" and found_cards.found() else 2


def real(name: str, settings: Settings, longest: int, cards: int) -> Engines:
    """Engines of this name for requests of at most `longest` tokens; one thread each unless set otherwise.

    All have the checkpoint's own precision. Raises `StackError` where vLLM has no model, or `cards` that are
    several GPUs; `OSError` where the model's files are not there; and what `registry.build` raises.
    """
    engine = _vllm(settings.engine, cards) if name == "vllm" else settings.engine

    def make(lanes: Lanes, card: int) -> Engine:
        config = registry.EngineConfig(
            settings.model,
            slots=places(lanes),
            max_model_len=min(_model_len(lanes), longest + TEMPLATE_TOKENS),
            model_path=engine.model_path,
            threads=engine.threads or 1,
            policy=replace(_policy(lanes), precision=Precision.AUTO, kv_cache_gib=KV_CACHE_GIB),
            options=engine.options,
        )
        return registry.build(name, config)

    return Engines(make, Prompts(unwanted=_control_tokens(name, engine)), measured=True)


def _vllm(engine: EngineSettings, cards: int) -> EngineSettings:
    """With a model, and the options of a machine without a GPU where this is one."""
    engine = engine.model_copy(
        update={"model_path": vllm_on_cpu.model(engine.model_path, "the setting engine.model_path")}
    )
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if found_cards.found():
        if cards > real_cards("vllm"):
            raise StackError(
                "vLLM on GPUs: the engines of this benchmark share a process, and a process is pinned to one"
                " GPU: leave --cards out"
            )
        return engine
    for variable, value in vllm_on_cpu.VARIABLES.items():
        os.environ.setdefault(variable, value)
    return engine.model_copy(update={"options": {**vllm_on_cpu.OPTIONS, **engine.options}})


def _control_tokens(name: str, engine: EngineSettings) -> tuple[int, ...]:
    """The model's tokens that stand for no text, those that end an answer among them."""
    if name == "vllm" and engine.model_path:
        added = json.loads((engine.model_path / "tokenizer.json").read_text())["added_tokens"]
        return tuple(token["id"] for token in added if token["special"])
    types = gguf.read_metadata(engine.model_path or smollm2_path())["tokenizer.ggml.token_type"]
    return tuple(token for token, kind in enumerate(types) if kind == _CONTROL)


def _policy(lanes: Lanes) -> EnginePolicy:
    return next(iter(lanes.values())).engine


def _model_len(lanes: Lanes) -> int:
    return max(policy.max_model_len for policy in lanes.values())
