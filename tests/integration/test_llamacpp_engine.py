"""What only llama.cpp can show: sampling that reaches it, what it refuses, what it listens on."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jobs.domain.outcomes import Completed, Rejected
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.model_files import ModelFileMissing, smollm2_path
from workers.engines.llamacpp import LlamaCppEngine

REPETITIVE = (Message(Role.USER, "Say the word lighthouse again and again."),)
GREEDY = Sampling(max_tokens=24, temperature=0.0)


class Llama:
    """The engine on a loop of its own."""

    def __init__(self, engine: LlamaCppEngine, runner: asyncio.Runner) -> None:
        self.engine, self._runner = engine, runner

    def outcome_and_text(self, request: GenerationRequest) -> tuple[object, str]:
        """One request, to its end."""

        async def read() -> tuple[object, str]:
            chunks = [chunk async for chunk in self.engine.generate(request)]
            return chunks[-1].outcome, "".join(chunk.text for chunk in chunks)

        return self._runner.run(read())

    def text(self, sampling: Sampling) -> str:
        """The answer to a prompt that invites repetition."""
        outcome, text = self.outcome_and_text(GenerationRequest("job", REPETITIVE, sampling))
        assert isinstance(outcome, Completed)
        return text


@pytest.fixture(scope="module")
def llama() -> Iterator[Llama]:
    """One engine for all the tests here."""
    with asyncio.Runner() as runner:
        engine = LlamaCppEngine(smollm2_path(), "smollm2", slots=1, ctx_per_slot=1024)
        runner.run(engine.start())
        yield Llama(engine, runner)
        runner.run(engine.stop())


def test_sampling_parameters_reach_llama_cpp(llama: Llama) -> None:
    greedy = llama.text(GREEDY)
    hot = replace(GREEDY, temperature=2.0, seed=3)
    assert llama.text(hot) != greedy
    assert llama.text(replace(hot, top_p=1e-6)) == greedy
    assert llama.text(replace(GREEDY, frequency_penalty=2.0)) != greedy
    assert llama.text(replace(GREEDY, presence_penalty=2.0)) != greedy
    assert llama.text(replace(hot, seed=2**40 + 3)) == llama.text(replace(hot, seed=2**40 + 3))


def test_a_prefix_seen_before_is_not_prefilled_again(llama: Llama) -> None:
    request = GenerationRequest("job", (Message(Role.USER, "The sea is wide. " * 20),), GREEDY)
    first, _ = llama.outcome_and_text(request)
    again, _ = llama.outcome_and_text(request)
    assert isinstance(first, Completed) and isinstance(again, Completed)
    assert again.usage.cached_tokens > first.usage.cached_tokens
    assert again.usage.prompt_tokens == first.usage.prompt_tokens
    assert 0 < (llama.engine.stats().prefix_hit_rate or 0) < 1


@pytest.mark.parametrize(
    ("content", "sampling"),
    [("a lone \ud800 surrogate", GREEDY), ("a number", replace(GREEDY, temperature=float("nan")))],
)
def test_what_json_cannot_carry_is_rejected(llama: Llama, content: str, sampling: Sampling) -> None:
    outcome, _ = llama.outcome_and_text(GenerationRequest("job", (Message(Role.USER, content),), sampling))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "invalid_request"
    assert llama.text(GREEDY)


def test_nobody_else_can_ask_its_loopback_port(llama: Llama) -> None:
    address = llama.engine._server.listening_address
    request = urllib.request.Request(f"{address}/v1/chat/completions", b'{"messages": []}')
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 401


def test_the_kv_cache_bounds_the_sequences() -> None:
    # 30 layers, 3 key-value heads of 64 values, 2 bytes each, keys and values: 23,040 bytes a token.
    engine = LlamaCppEngine(smollm2_path(), "smollm2", slots=16, ctx_per_slot=32_768, kv_cache_gib=0.5)
    assert engine._ctx_per_slot == 8192  # what the model was trained for
    assert engine._slots == 2**29 // (8192 * 23_040)
    assert engine.precision == "Q4_1"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileMissing, match=r"nowhere\.gguf"):
        LlamaCppEngine(tmp_path / "nowhere.gguf", "smollm2")
