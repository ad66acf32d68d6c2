"""The engine's benchmark: its tokens per second through all of Trilane over those of the engine alone."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jobs.domain.lanes import Kind
from producer import Client
from trilane.bench import vllm_on_cpu
from trilane.bench.rig import Rig, Say, servers
from trilane.stack import StackError
from workers.planning import cards

LANE = "hot"
THREADS = 1  # the engine's, on both sides; another core is left to the pipeline
ROUNDS_OF_SLOTS = 4  # requests in one measurement, in multiples of the concurrency
TARGETS = {"llamacpp": 0.95, "vllm": 0.97}
_TIMEOUT_S = 600.0

Run = Callable[[Sequence[str]], float]


def measure(
    engine: str, model_path: Path | None, pairs: int, concurrency: int, max_tokens: int, say: Say
) -> dict[str, Any]:
    """Run `pairs` pairs on the same prompts, each side first in turns; returns the ratios and what made them.

    Both sides hold their engine all the time and answer the same prompts in the same order. The engines
    are alike, started by the same code. One pair before the first is not counted.
    """
    env = _environment(engine, model_path)
    policy = {
        "limit": concurrency,
        "engine": {"sequences": concurrency},  # or the bare side, asked for all at once, would batch more
        "warm_up": {"prompt_tokens": []},  # the pair that is not counted warms both
    }
    measured: list[dict[str, float]] = []
    with (
        servers(say, {LANE: policy}) as rig,
        rig.worker(LANE, engine, **env),
        _bare(rig, engine, max_tokens, env) as bare,
    ):
        client = Client(settings=rig.settings)
        sides: dict[str, Run] = {
            "bare": bare,
            "trilane": lambda prompts: _through_trilane(client, prompts, max_tokens),
        }
        for number in range(pairs + 1):
            prompts = [_prompt(number, i) for i in range(concurrency * ROUNDS_OF_SLOTS)]
            order = sorted(sides, reverse=bool(number % 2))
            per_s = {name: sides[name](prompts) for name in order}
            if number:
                measured.append(per_s | {"ratio": per_s["trilane"] / per_s["bare"]})
            say(
                f"pair {number or '(warm-up)'}: {per_s['trilane']:.1f} tokens/s through Trilane,"
                f" {per_s['bare']:.1f} bare"
            )
        client.close()
    ratios = [pair["ratio"] for pair in measured]
    target = TARGETS.get(engine, min(TARGETS.values()))
    return {
        "engine": engine,
        "pairs": measured,
        "concurrency": concurrency,
        "max_tokens": max_tokens,
        "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        "tokens_per_s": {
            name: statistics.median(pair[name] for pair in measured) for name in ("trilane", "bare")
        },
        "load_average": os.getloadavg(),
        "targets": {f"ratio.median >= {target}": statistics.median(ratios) >= target},
    }


def _environment(engine: str, model_path: Path | None) -> dict[str, str]:
    """What both sides are told beside the settings. Raises `StackError` where vLLM has no model."""
    env = {"TRILANE_ENGINE__THREADS": str(THREADS)}
    if engine == "vllm":
        model_path = vllm_on_cpu.model(model_path, "--model-path")
        if not cards.found():
            env |= {"TRILANE_ENGINE__OPTIONS": json.dumps(vllm_on_cpu.OPTIONS), **vllm_on_cpu.VARIABLES}
    return env | ({"TRILANE_ENGINE__MODEL_PATH": str(model_path)} if model_path else {})


def _prompt(number: int, i: int) -> str:
    return (
        f"Ticket {number}-{i}: my parcel is {i + 2} days late. Write a kind answer and say what happens next."
    )


def _through_trilane(client: Client, prompts: Sequence[str], max_tokens: int) -> float:
    """Output tokens a second from the first submit call until the last job is known to have ended."""
    began = time.perf_counter()
    jobs = [client.enqueue(Kind.CHAT, prompt, max_tokens=max_tokens, temperature=0.0) for prompt in prompts]
    results = [client.wait(job_id, _TIMEOUT_S).result for job_id in jobs]
    took_s = time.perf_counter() - began
    return sum(result.output_tokens if result else 0 for result in results) / took_s


@contextmanager
def _bare(rig: Rig, engine: str, max_tokens: int, env: dict[str, str]) -> Iterator[Run]:
    """The process of the engine alone; the value runs prompts and returns output tokens a second."""
    argv = [sys.executable, "-m", "trilane.bench.bare_engine", LANE, engine, str(max_tokens)]
    with (rig.logs / "bare.log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            env={**os.environ, **rig.environment(), **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,  # as the worker: Linux shares the processors by session first
        )
    with process:
        if process.stdin is None or process.stdout is None:
            raise ValueError("both are pipes")
        to_process, from_process = process.stdin, process.stdout

        def answer() -> dict[str, Any]:
            line = from_process.readline()
            if not line:
                raise StackError(f"the bare engine ended: {(rig.logs / 'bare.log').read_text()[-500:]}")
            answered: dict[str, Any] = json.loads(line)
            return answered

        def run(prompts: Sequence[str]) -> float:
            to_process.write(json.dumps(prompts) + "\n")
            to_process.flush()
            answered = answer()
            return float(answered["tokens"] / answered["s"])

        try:
            answer()
            yield run
        finally:
            process.kill()
