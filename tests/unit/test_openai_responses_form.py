"""What a response may be asked with: what is taken, what is refused by which name, how it is translated."""

import json
from typing import Any

import pytest

from jobs.domain.requests import Message, Role
from producer.openai import responses_batch
from producer.openai.responses_form import parse
from producer.openai.responses_translation import renamed, request_of
from producer.refusals import Code, Refusal

IMAGE = {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"}
SCHEMA = {"type": "json_schema", "name": "town", "schema": {"type": "object"}, "strict": True}


def refused(**given: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        request_of(parse({"input": "Hello"} | given))
    return caught.value


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice"),
        ({"max_tool_calls": 3}, "max_tool_calls"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"image": {"context_compression": "auto"}}, "image"),
        ({"moderation": {"model": "omni-moderation-latest"}}, "moderation"),
        ({"access_programs": {"cyber": "standard"}}, "access_programs"),
        ({"context_management": [{"type": "compaction"}]}, "context_management"),
        ({"background_options": {"completion_window": "2h"}}, "background_options"),
        ({"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options"),
        ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"text": {"format": SCHEMA | {"description": "A town."}}}, "text.format.description"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
        ({"input": [{"type": "function_call_output", "call_id": "1", "output": "2"}]}, "input[0].type"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(given: dict[str, Any], field: str) -> None:
    refusal = refused(**given)
    assert (refusal.field, refusal.code) == (field, Code.UNSUPPORTED_PARAMETER)


@pytest.mark.parametrize(
    ("given", "field", "code"),
    [
        ({"input": "  "}, "input[0]", Code.EMPTY),
        ({"input": []}, "input", Code.EMPTY),
        ({"input": None}, "input", Code.WRONG_TYPE),
        ({"input": 1}, "input", Code.WRONG_TYPE),
        ({"input": [{"role": "assistant", "content": ""}]}, "input", Code.EMPTY),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", Code.INVALID_VALUE),
        ({"input": [{"role": "user", "content": "a\0"}]}, "input[0].content[0].text", Code.UNSTORABLE_TEXT),
        ({"temperature": 2.1}, "temperature", Code.OUT_OF_RANGE),
        ({"max_output_tokens": 0}, "max_output_tokens", Code.OUT_OF_RANGE),
        ({"top_logprobs": 21}, "top_logprobs", Code.OUT_OF_RANGE),
        ({"truncation": "middle"}, "truncation", Code.INVALID_VALUE),
        ({"background": "yes"}, "background", Code.WRONG_TYPE),
        ({"background": True, "store": False}, "store", Code.CONFLICTING_FIELDS),
        ({"metadata": {"a": 1}}, "metadata.a", Code.WRONG_TYPE),
        ({"n": 2}, "n", Code.UNKNOWN_FIELD),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", Code.INVALID_VALUE),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format", Code.MISSING_FIELD),
        (
            {"text": {"format": {"type": "json_schema", "name": "a"}}},
            "text.format.schema",
            Code.MISSING_FIELD,
        ),
        ({"text": {"format": SCHEMA | {"name": "a b"}}}, "text.format.name", Code.INVALID_VALUE),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], field: str, code: Code) -> None:
    refusal = refused(**given)
    assert (refusal.field, refusal.code) == (field, code)


def test_a_body_that_is_no_form_is_refused() -> None:
    for body in (b"{", b"[]", b'{"input": "a", "input": "b"}'):
        with pytest.raises(Refusal):
            parse(body)


def test_what_asks_for_nothing_is_taken() -> None:
    form = parse(
        {
            "input": "Hello", "tools": [], "tool_choice": "none", "reasoning": {"effort": None},
            "include": [], "conversation": None, "prompt": None, "prompt_cache_options": {},
            "stream_options": {"include_obfuscation": False},
            "text": {"format": {"type": "text"}, "verbosity": "medium"}, "store": None, "background": None,
        }
    )  # fmt: skip
    assert form.stored
    assert request_of(form).max_tokens is None


def test_a_conversation_is_put_together_without_what_is_empty() -> None:
    form = parse(
        {
            "instructions": "Be brief.",
            "input": [
                {"role": "developer", "content": "Be kind."},
                {"role": "assistant", "id": "msg_1", "status": "incomplete", "phase": None,
                 "content": [{"type": "output_text", "text": " ", "annotations": [], "logprobs": []}]},
                {"role": "user", "content": [{"type": "input_text", "text": said} for said in ("A", "B")]},
            ],
        }
    )  # fmt: skip
    before = [Message(Role.USER, "Hello"), Message(Role.ASSISTANT, ""), Message(Role.ASSISTANT, "Hi")]
    assert [(turn.role, turn.content) for turn in request_of(form, before).messages or ()] == [
        (Role.SYSTEM, "Be brief."),
        (Role.USER, "Hello"),
        (Role.ASSISTANT, "Hi"),
        (Role.SYSTEM, "Be kind."),
        (Role.USER, "A\nB"),
    ]


def test_a_schema_reaches_the_engine_and_is_shown_again() -> None:
    form = parse({"input": "A town", "text": {"format": SCHEMA}})
    wanted = request_of(form).response_format
    assert wanted is not None
    assert wanted.stored() == {
        "type": "json_schema",
        "json_schema": {"name": "town", "schema": {"type": "object"}, "strict": True},
    }
    assert form.echo()["text"] == {"format": SCHEMA}
    json.dumps(form.echo())


def test_refusals_of_a_request_use_openais_names() -> None:
    for ours, theirs in (("messages", "input"), ("max_tokens", "max_output_tokens"), ("lane", "lane")):
        assert renamed(Refusal(Code.TOO_LONG, "It is long", field=ours)).field == theirs


@pytest.mark.parametrize(
    "given", [{"background": True}, {"previous_response_id": "resp_1"}, {"truncation": "auto"}]
)
def test_a_batch_refuses_what_needs_more_than_a_line(given: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as caught:
        responses_batch.to_request({"input": "Hello"} | given)
    assert caught.value.field == next(iter(given))
