"""vLLM's own `AsyncLLM` with a lane's arguments, driven directly: the bare side of its benchmark."""

import asyncio
from collections.abc import Awaitable, Callable

from jobs.domain.requests import Message, Role, Sampling
from workers.engines import vllm, vllm_sampling
from workers.engines.registry import EngineConfig
from workers.engines.vllm_prompts import prompt_tokens


async def start(config: EngineConfig, max_tokens: int) -> Callable[[int, str], Awaitable[int]]:
    """Load the model; the value answers a numbered prompt and returns how many tokens it gave."""
    llm = await asyncio.to_thread(vllm.launch, config)
    tokenizer = llm.get_tokenizer()
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0)

    async def ask(number: int, prompt: str) -> int:
        tokens = prompt_tokens(tokenizer, (Message(Role.USER, prompt),))
        params = vllm.sampling_params(vllm_sampling.keywords(sampling, {}, max_tokens))
        stream = llm.generate({"prompt_token_ids": tokens}, params, str(number))
        return sum([len(output.outputs[0].token_ids) async for output in stream])

    return ask
