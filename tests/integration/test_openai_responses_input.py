"""What responses are asked with, by the official client: conversations, tiers, lengths, formats, refusals."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel

from tests.api import Api
from tests.processes import Processes
from tests.responses_rig import MODEL, Rig, refused
from tests.waiting import until


@pytest.fixture
def rig(api: Api) -> Rig:
    return Rig(api)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_a_conversation_goes_on_without_the_earlier_instructions(rig: Rig) -> None:
    first = rig.create(input="My name is Ada.", instructions="Be brief.")
    rig.answer(first.id, "Hello Ada.")
    second = rig.create(input="Who am I?", instructions="Be kind.", previous_response_id=first.id)
    rig.answer(second.id, "Ada.")
    third = rig.create(
        input=[{"role": "user", "content": [{"type": "input_text", "text": "Sure?"}]}],
        previous_response_id=second.id,
    )
    said = [("user", "My name is Ada."), ("assistant", "Hello Ada."), ("user", "Who am I?")]
    assert rig.turns(second.id) == [("system", "Be kind."), *said]
    assert rig.turns(third.id) == [*said, ("assistant", "Ada."), ("user", "Sure?")]
    assert third.previous_response_id == second.id
    items = rig.client.responses.input_items.list(third.id, order="asc", limit=2)
    assert [item.to_dict()["content"] for item in items] == [
        [{"type": "output_text" if role == "assistant" else "input_text", "text": said}
         | ({"annotations": [], "logprobs": []} if role == "assistant" else {})]
        for role, said in rig.turns(third.id)
    ]  # fmt: skip


def test_an_answer_can_be_sent_back_as_it_came(rig: Rig) -> None:
    first = rig.create()
    rig.answer(first.id, "A line.")
    output: Any = rig.client.responses.retrieve(first.id).output
    second = rig.create(
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "What is a queue?", "type": "message"},
            *output,
            {"role": "user", "content": [{"type": "input_text", "text": t} for t in ("And", "a lane?")]},
        ]
    )
    assert rig.turns(second.id) == [
        ("system", "Be brief."), ("user", "What is a queue?"), ("assistant", "A line."),
        ("user", "And\na lane?"),
    ]  # fmt: skip


def test_only_a_completed_response_can_be_gone_on_from(rig: Rig, threads: ThreadPoolExecutor) -> None:
    queued = rig.create()
    error = refused(rig.create, previous_response_id=queued.id)
    assert (error.param, "queued" in error.message) == ("previous_response_id", True)
    unstored: Future[Response] = threads.submit(rig.create, background=False, store=False)
    response_id = until(lambda: rig.ids()[1:], what="the second one")[0]
    error = refused(rig.create, previous_response_id=response_id)
    assert (error.param, error.code) == ("previous_response_id", "previous_response_not_found")
    rig.answer(response_id, "A line.")
    unstored.result()


def test_a_service_tier_is_a_lane(rig: Rig) -> None:
    tiers: Any = {
        "priority": ("hot", "priority"), "fast": ("hot", "priority"), "default": ("warm", "default"),
        "auto": ("warm", "default"), None: ("warm", "default"), "flex": ("cold", "flex"),
    }  # fmt: skip
    for asked, (lane, answered) in tiers.items():
        created = rig.create(service_tier=asked)
        assert (rig.column(created.id, "lane"), created.service_tier) == (lane, answered)


def test_what_is_too_long_for_its_tier_is_answered_in_the_next_that_fits(rig: Rig) -> None:
    assert rig.create(service_tier="priority", input="lane " * 4_500).service_tier == "default"
    assert rig.create(service_tier="priority", input="lane " * 6_000).service_tier == "flex"
    error = refused(rig.create, input="lane " * 40_000)
    assert (error.code, error.param) == ("context_length_exceeded", "input")


def test_truncation_auto_drops_from_the_middle_and_says_so(rig: Rig) -> None:
    turns: Any = [{"role": "user", "content": f"turn {number} " + "word " * 500} for number in range(20)]
    created = rig.create(input=turns, instructions="Be brief.", truncation="auto", service_tier="priority")
    assert (created.service_tier, created.truncation) == ("priority", "auto")
    assert created.to_dict()["dropped_tokens"] > 5_000  # type: ignore[operator]
    kept = [content.split(" word")[0] for _, content in rig.turns(created.id)]
    assert kept[:2] + kept[-1:] == ["Be brief.", "turn 0", "turn 19"]
    assert len(kept) < 10
    rig.answer(created.id, "Yes.")
    longer = rig.create(input="Go on.", previous_response_id=created.id, service_tier="flex")
    assert len(rig.turns(longer.id)) == 22
    assert longer.to_dict()["dropped_tokens"] == 0


def test_truncation_auto_cuts_one_long_text_in_its_middle(rig: Rig) -> None:
    text = f"begin {'word ' * 9_000}end"
    created = rig.create(input=text, truncation="auto")
    [(_, content)] = rig.turns(created.id)
    assert created.service_tier == "default"
    assert content.startswith("begin") and content.endswith("end") and "[...]" in content
    assert len(content) > len(text) * 0.4


class Town(BaseModel):
    """What the answer must be."""

    size: Literal["small", "large"]
    by_the_sea: bool


def test_an_answer_is_parsed_by_its_json_schema(rig: Rig, processes: Processes) -> None:
    worker = processes.start("worker", "--lanes", "hot", "--engine", "llamacpp")
    until(lambda: processes.count("workers", "state = 'ready'") or worker.poll(), 60, "a ready worker")
    asked: Any = {
        "model": MODEL, "input": "A small town by the sea, as JSON.", "text_format": Town, "temperature": 0,
        "max_output_tokens": 64, "service_tier": "priority", "timeout": 120,
    }  # fmt: skip
    parsed = rig.client.responses.parse(**asked)
    assert isinstance(parsed.output_parsed, Town)
    assert parsed.text is not None and parsed.text.format is not None
    assert parsed.text.format.type == "json_schema"
    with rig.client.responses.stream(**asked) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed


def test_harmless_parameters_are_taken(rig: Rig) -> None:
    created = rig.create(
        tools=[], tool_choice="none", parallel_tool_calls=False, safety_identifier="s", prompt_cache_key="c",
        include=[], reasoning={"effort": None}, text={"format": {"type": "text"}, "verbosity": "medium"},
        truncation="disabled", conversation=None, top_p=1, max_tool_calls=None, stream_options=None,
    )  # fmt: skip
    assert (created.parallel_tool_calls, created.tool_choice) == (False, "none")
    assert (created.safety_identifier, created.prompt_cache_key) == ("s", "c")
    with rig.stream(stream_options={"include_obfuscation": False}) as stream:
        assert next(iter(stream)).type == "response.created"


def test_what_cannot_be_done_is_refused_by_name_and_nothing_stored(rig: Rig) -> None:
    wrong: list[tuple[dict[str, Any], str, str]] = [
        ({"tools": [{"type": "web_search"}]}, "tools", "unsupported_parameter"),
        ({"service_tier": "ultrafast"}, "service_tier", "unsupported_parameter"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation",
         "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "out_of_range"),
        ({"extra_body": {"seed": 1}}, "seed", "unknown_field"),
        ({"store": False}, "store", "conflicting_fields"),
        ({"model": "gpt-6"}, "model", "model_not_found"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", "previous_response_not_found"),
    ]  # fmt: skip
    for given, param, code in wrong:
        error = refused(rig.create, **given)
        assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert rig.api.rows() == 0


def test_only_streams_start_after_an_event(rig: Rig) -> None:
    created = rig.create()
    answer = rig.api.client.get(f"/v1/responses/{created.id}?starting_after=3")
    assert answer.json()["error"]["param"] == "starting_after"
    answer = rig.api.client.get(f"/v1/responses/{created.id}?stream=true&include_obfuscation=true")
    assert answer.json()["error"]["code"] == "unsupported_parameter"


def test_an_input_is_counted_as_it_would_be_asked_with(rig: Rig) -> None:
    first = rig.create(input="My name is Ada.")
    rig.answer(first.id, "Hello Ada.")
    words = "word " * 12_000
    for given in (
        {"input": "What is a queue?"},
        {"input": [{"role": "user", "content": "And a lane?"}], "instructions": "Be brief."},
        {"input": "Who am I?", "previous_response_id": first.id},
        {"input": words},
        {"input": words, "truncation": "auto"},
    ):
        asked: Any = {"model": MODEL, **given}
        counted = rig.client.responses.input_tokens.count(**asked)
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == rig.column(rig.create(**given).id, "prompt_tokens")
    before = rig.api.rows()
    assert rig.client.responses.input_tokens.count(previous_response_id=first.id).input_tokens > 0
    assert asyncio.run(_count(rig)) == rig.client.responses.input_tokens.count(input="Hello").input_tokens
    assert rig.api.rows() == before


async def _count(rig: Rig) -> int:
    async with AsyncOpenAI(base_url=f"{rig.api.url}/v1", api_key=rig.api.key) as client:
        return (await client.responses.input_tokens.count(input="Hello")).input_tokens


@pytest.mark.parametrize(
    ("given", "status", "code", "param"),
    [
        ({"input": "x", "tools": [{"type": "web_search"}]}, 400, "unsupported_parameter", "tools"),
        ({"input": "x", "personality": "friendly"}, 400, "unsupported_parameter", "personality"),
        ({"input": "x", "model": "gpt-5"}, 404, "model_not_found", "model"),
        ({"input": "x", "previous_response_id": "resp_1"}, 400, "previous_response_not_found", None),
        ({}, 400, "empty", "input"),
    ],
)
def test_what_is_wrong_with_an_input_to_count_is_named(
    rig: Rig, given: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    error = refused(rig.client.responses.input_tokens.count, **given)
    assert (error.status_code, error.code, error.param) == (status, code, param or "previous_response_id")
