"""Every sampling parameter has its effect in real vLLM, and a wrong one is refused by name."""

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from jobs.domain.outcomes import FinishReason, Rejected
from jobs.domain.requests import Sampling
from tests.answers import Answer
from tests.vllm.driver import Driver, ask

HOT: dict[str, Any] = {"temperature": 1.5, "seed": 3}


def ids(answer: Answer) -> list[int]:
    """The answer's tokens."""
    return [token for chunk in answer.chunks for token in chunk.token_ids]


@pytest.fixture(scope="module")
def greedy(tiny: Driver) -> str:
    """The greedy answer."""
    text = tiny.answer(ask()).text
    assert text == tiny.answer(ask()).text
    return text


@pytest.mark.parametrize("narrowing", [{"top_p": 1e-6}, {"top_k": 1}, {"min_p": 1.0}])
def test_what_leaves_one_token_is_greedy(tiny: Driver, greedy: str, narrowing: dict[str, Any]) -> None:
    hot = tiny.answer(ask(**HOT)).text
    assert hot != greedy
    assert hot == tiny.answer(ask(**HOT)).text
    assert tiny.answer(ask(**HOT, **narrowing)).text == greedy


def test_another_seed_is_another_text(tiny: Driver) -> None:
    first, other, huge = (tiny.answer(ask(**HOT | {"seed": seed})).text for seed in (3, 4, 2**80 + 3))
    assert first != other
    assert huge == first


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_end_a_repetition(tiny: Driver, name: str) -> None:
    repeating: dict[str, Any] = {"logit_bias": {"500": 1.5}}
    assert set(ids(tiny.answer(ask(**repeating)))) == {500}
    assert set(ids(tiny.answer(ask(**repeating | {name: 2.0})))) > {500}


def test_logit_bias_forces_and_forbids_a_token(tiny: Driver) -> None:
    (token,) = ids(tiny.answer(ask(max_tokens=1)))
    assert ids(tiny.answer(ask(max_tokens=1, logit_bias={str(token): -100}))) != [token]
    assert ids(tiny.answer(ask(max_tokens=4, logit_bias={"500": 100}))) == [500] * 4


def test_bad_words_do_not_come(tiny: Driver, greedy: str) -> None:
    word = tiny.answer(ask(max_tokens=1)).text
    assert greedy.startswith(word)
    assert word not in tiny.answer(ask(bad_words=(word,))).text


def test_vllm_ends_a_text_that_goes_in_circles(tiny: Driver) -> None:
    circling = ask(max_tokens=100, logit_bias={"500": 100})
    answer = tiny.answer(replace(circling, stop_repetition=True))
    assert answer.completed.finish_reason is FinishReason.REPETITION
    assert answer.completed.usage.output_tokens < 30
    assert tiny.answer(circling).completed.usage.output_tokens == 100


def test_a_stop_string_ends_the_text_before_it(tiny: Driver, greedy: str) -> None:
    stop = greedy[len(greedy) // 2 :][:5]
    answer = tiny.answer(ask(stop=(stop,)))
    assert answer.text == greedy[: greedy.index(stop)]
    assert answer.completed.finish_reason is FinishReason.STOP


def test_n_answers_come_as_choices(tiny: Driver) -> None:
    answer = tiny.answer(ask(n=3, **HOT))
    choices = answer.completed.choices
    assert len({choice.text for choice in choices}) == 3
    assert choices[0].text == answer.text
    assert answer.completed.usage.output_tokens == 3 * 16


def test_logprobs_tell_the_chosen_and_the_likeliest_tokens(tiny: Driver, greedy: str) -> None:
    answer = tiny.answer(ask(logprobs=True, top_logprobs=3))
    (choice,) = answer.completed.choices
    assert choice.text == answer.text == greedy
    assert choice.logprobs is not None and len(choice.logprobs) == 16
    for position in choice.logprobs:
        assert position.logprob < 0
        assert len(position.top) == 3
        assert position.top[0] == (position.token, position.logprob), "greedy takes the likeliest"
        assert sorted(position.top, key=lambda one: -one[1]) == list(position.top)
    (bare,) = tiny.answer(ask(logprobs=True)).completed.choices
    assert bare.logprobs is not None and all(position.top == () for position in bare.logprobs)


def test_a_json_schema_is_kept(tiny: Driver) -> None:
    schema = {"enum": ["delivered", "lost"]}
    wanted = {"type": "json_schema", "json_schema": {"name": "state", "schema": schema}}
    assert json.loads(tiny.answer(ask(response_format=wanted)).text) in schema["enum"]
    assert tiny.answer(ask(response_format={"type": "json_object"})).text.lstrip().startswith("{")
    assert tiny.answer(ask(response_format={"type": "text"})).completed


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"presence_penalty": 3.0}, "presence_penalty"),
        ({"frequency_penalty": float("nan")}, "frequency_penalty"),
        ({"n": 2}, "n must be 1"),
        ({"stop": ("",)}, "stop"),
        ({"logprobs": True, "top_logprobs": 50}, "logprobs"),
        ({"logit_bias": {"999999": 1.0}}, "logit_bias"),
        ({"bad_words": ("",)}, "bad_words"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}}, "response"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_a_wrong_parameter_is_refused_by_name(tiny: Driver, wrong: dict[str, Any], name: str) -> None:
    outcome = tiny.answer(ask(**wrong)).outcome
    assert isinstance(outcome, Rejected), outcome
    assert outcome.code == "invalid_request"
    assert name in outcome.message
    assert tiny.answer(ask(max_tokens=2)).completed, "the engine lives on"


@pytest.mark.parametrize("wrong", [{"content": "\ud800"}, {"stop": ("\ud800",)}])
def test_what_is_no_unicode_is_refused(tiny: Driver, wrong: dict[str, Any]) -> None:
    outcome = tiny.answer(ask(**wrong)).outcome
    assert isinstance(outcome, Rejected)
    assert outcome.code == "invalid_request"


def test_the_engine_names_what_it_honours(tiny: Driver) -> None:
    assert tiny.engine.parameters == {field.name for field in fields(Sampling)} - {"windows"}
