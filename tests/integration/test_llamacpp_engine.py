"""What only llama.cpp can show: sampling that reaches it, what it refuses, what it listens on."""

import asyncio
import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.outcomes import Completed, FinishReason, Rejected, Usage
from jobs.domain.policies import GuardPolicy, WindowPolicy
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.model_files import ModelFileMissing, smollm2_path
from jobs.tokenizer import TokenCounter
from workers.answering import Answering
from workers.engines.llamacpp import LlamaCppEngine

REPETITIVE = (Message(Role.USER, "Say the word lighthouse again and again."),)
GREEDY = Sampling(max_tokens=24, temperature=0.0)
COUNTER = TokenCounter(smollm2_path())


class Llama:
    """The engine on a loop of its own."""

    def __init__(self, engine: LlamaCppEngine, runner: asyncio.Runner) -> None:
        self.engine, self._runner = engine, runner

    def outcome_and_text(
        self, request: GenerationRequest, policy: LanePolicy | None = None
    ) -> tuple[object, str]:
        """One request, to its end; with a `policy`, as that lane answers it."""

        async def read() -> tuple[object, str]:
            answers: LlamaCppEngine | Answering = self.engine
            if policy is not None:
                answers = Answering(self.engine, policy, COUNTER)
            chunks = [chunk async for chunk in answers.generate(request)]
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


def test_the_other_parameters_reach_llama_cpp_too(llama: Llama) -> None:
    greedy = llama.text(GREEDY)
    hot = replace(GREEDY, temperature=2.0, seed=3)
    assert llama.text(replace(hot, top_k=1)) == greedy
    assert llama.text(replace(hot, min_p=1.0)) == greedy
    first = (COUNTER.ids([greedy]) or [[]])[0][0]
    biased = llama.text(replace(GREEDY, logit_bias={str(first): -100.0}))
    assert biased[:3] != greedy[:3]


def test_log_probabilities_are_kept_token_by_token(llama: Llama) -> None:
    sampling = replace(GREEDY, logprobs=True, top_logprobs=3)
    outcome, text = llama.outcome_and_text(GenerationRequest("job", REPETITIVE, sampling))
    assert isinstance(outcome, Completed)
    (choice,) = outcome.choices
    assert choice.logprobs is not None and len(choice.logprobs) == 24
    assert choice.text == text == "".join(one.token for one in choice.logprobs)
    for one in choice.logprobs:
        assert one.top[0] == (one.token, one.logprob), "greedy takes the likeliest"
        assert 1 >= sum(math.exp(logprob) for _, logprob in one.top) > math.exp(one.logprob)
    chosen, _ = llama.outcome_and_text(GenerationRequest("job", REPETITIVE, replace(GREEDY, logprobs=True)))
    assert isinstance(chosen, Completed)
    assert [one.top for one in chosen.choices[0].logprobs or ()] == [()] * 24


def structured(kind: str, schema: dict[str, Any] | None = None) -> Sampling:
    form: dict[str, Any] = {"type": kind}
    if schema is not None:
        form["json_schema"] = {"name": "answer", "schema": schema}
    return replace(GREEDY, max_tokens=80, response_format=form)


def test_an_answer_in_json_meets_its_schema(llama: Llama) -> None:
    schema = {
        "type": "object",
        "properties": {"floors": {"type": "integer"}, "colour": {"enum": ["red", "white"]}},
        "required": ["floors", "colour"],
        "additionalProperties": False,
    }
    answer = json.loads(llama.text(structured("json_schema", schema)))
    assert isinstance(answer["floors"], int) and answer["colour"] in ("red", "white")
    assert isinstance(json.loads(llama.text(structured("json_object"))), dict)


def test_a_schema_that_makes_no_sense_is_rejected(llama: Llama) -> None:
    sampling = structured("json_schema", {"type": "nonsense"})
    outcome, _ = llama.outcome_and_text(GenerationRequest("job", REPETITIVE, sampling))
    assert isinstance(outcome, Rejected)
    assert outcome.code == "invalid_request" and "nonsense" in outcome.message
    assert llama.text(GREEDY)


def test_the_guards_act_on_a_real_stream(llama: Llama, tmp_path: Path) -> None:
    request = GenerationRequest("job", REPETITIVE, replace(GREEDY, max_tokens=400))
    looping = replace(
        request.sampling, logit_bias={str(id): 100.0 for id in (COUNTER.ids([" sea"]) or [[]])[0]}
    )
    outcome, text = llama.outcome_and_text(replace(request, sampling=looping), LANES["cold"])
    prompt_tokens = COUNTER.count(REPETITIVE)
    assert outcome == Completed(FinishReason.REPETITION, Usage(prompt_tokens, 10))
    assert text == " sea" * 10

    _, whole = llama.outcome_and_text(replace(request, sampling=GREEDY))
    words = whole.split()
    file = tmp_path / "banned.txt"
    file.write_text(" ".join(words[4:7]).upper())
    banned = replace(LANES["hot"], guards=GuardPolicy(repetition=False, banned_file=str(file)))
    outcome, text = llama.outcome_and_text(request, banned)
    assert isinstance(outcome, Completed) and outcome.finish_reason is FinishReason.CONTENT_FILTER
    assert text.split() == words[:4]

    file.write_text("pineapple")
    guards = GuardPolicy(repetition=False, favoured_file=str(file), favoured_bias=100.0)
    favours = replace(LANES["hot"], guards=guards)
    _, text = llama.outcome_and_text(replace(request, sampling=GREEDY), favours)
    assert "apple" in text


def test_a_long_document_is_read_in_windows(llama: Llama) -> None:
    policy = replace(LANES["cold"], max_model_len=220, windows=WindowPolicy(tokens=80, overlap=16))
    document = "Summarise this.\n\n" + "".join(f"Ship {n} came to the harbour at night. " for n in range(24))
    messages = (Message(Role.USER, document),)
    assert COUNTER.count(messages) > 220
    outcome, text = llama.outcome_and_text(
        GenerationRequest("job", messages, replace(GREEDY, max_tokens=12)), policy=policy
    )
    assert isinstance(outcome, Completed)
    assert 3 <= outcome.windows <= 8
    assert outcome.windows < outcome.usage.output_tokens <= 12 * 2 * outcome.windows, "parts and mergings"
    assert outcome.usage.prompt_tokens > COUNTER.count(messages)
    assert text and (outcome.timings.prefill_ms or 0) > 0


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
