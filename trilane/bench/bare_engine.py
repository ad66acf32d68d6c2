"""An engine driven directly: reads rounds of prompts as JSON lines, answers tokens and seconds of each.

`python -m trilane.bench.bare_engine LANE ENGINE MAX_TOKENS` is the process; it ends with its input.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import cast

from jobs import logging
from jobs import settings as settings_module
from jobs.domain.outcomes import Completed
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from workers.engines.seam import Engine
from workers.worker import build_engine


async def _serve(lane: str, engine_name: str, max_tokens: int) -> None:
    ask = await _start(build_engine(settings_module.load(), [lane], engine_name), max_tokens)
    print(json.dumps({"ready": True}), flush=True)  # noqa: T201 - standard output is this process's answer
    while line := await asyncio.to_thread(sys.stdin.readline):
        began = time.perf_counter()
        tokens = sum(await asyncio.gather(*(ask(*each) for each in enumerate(json.loads(line)))))
        print(json.dumps({"tokens": tokens, "s": time.perf_counter() - began}), flush=True)  # noqa: T201 - as above


async def _start(engine: Engine, max_tokens: int) -> Callable[[int, str], Awaitable[int]]:
    """What answers a numbered prompt with its number of tokens; for vLLM without our engine around it."""
    if engine.name == "vllm":
        from trilane.bench import bare_vllm
        from workers.engines.vllm import VllmEngine

        return await bare_vllm.start(cast(VllmEngine, engine).config, max_tokens)
    await engine.start()
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0)

    async def ask(number: int, prompt: str) -> int:
        request = GenerationRequest(str(number), (Message(Role.USER, prompt),), sampling)
        async for chunk in engine.generate(request):
            if isinstance(chunk.outcome, Completed):
                return chunk.outcome.usage.output_tokens
        raise RuntimeError("the bare engine did not answer")

    return ask


if __name__ == "__main__":
    logging.configure("WARNING")
    asyncio.run(_serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
