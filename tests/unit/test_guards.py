"""The guards on a stream: what they let through, what they end, and what an ended answer says."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.domain.lanes import LANES, LanePolicy, effective
from jobs.domain.outcomes import (
    Choice,
    Completed,
    EngineTimings,
    FinishReason,
    Outcome,
    Rejected,
    TokenLogprob,
    Usage,
)
from jobs.domain.policies import EnginePolicy, GuardPolicy, SpeculationPolicy
from jobs.domain.requests import GenerationRequest, Message, Role, Sampling
from jobs.model_files import smollm2_path
from jobs.tokenizer import TokenCounter
from workers.answering import Answering
from workers.engines.seam import BASIC_PARAMETERS, Chunk, EngineStats
from workers.guards import favoured, phrases
from workers.guards.banned import Banned, compiled
from workers.guards.repetition import Repetition
from workers.guards.seam import GuardUnusable

BY_GUARDS = (FinishReason.REPETITION, FinishReason.CONTENT_FILTER)
DONE = Completed(FinishReason.LENGTH, Usage(9, 99), EngineTimings(1.0, 2.0, 3.0))


class Scripted:
    """An engine that says what it is told to, and remembers what it was asked."""

    name = model = precision = device = "scripted"
    parameters = BASIC_PARAMETERS | {"n", "logprobs", "logit_bias"}
    dead = False

    def __init__(self, *chunks: Chunk | str, outcome: Outcome = DONE) -> None:
        self.chunks = [Chunk(one, 1) if isinstance(one, str) else one for one in chunks]
        self.chunks.append(Chunk(outcome=outcome))
        self.asked: list[GenerationRequest] = []
        self.sent = 0
        self.closed = False

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def stats(self) -> EngineStats:
        return EngineStats()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[Chunk, None]:
        self.asked.append(request)
        try:
            for chunk in self.chunks:
                self.sent += 1
                yield chunk
        finally:
            self.closed = True


def lane(**guards: Any) -> LanePolicy:
    return LanePolicy("lane", frozenset(), None, None, 4_096, 1, 0, guards=GuardPolicy(**guards))


def answer(engine: Scripted, policy: LanePolicy, **sampling: Any) -> list[Chunk]:
    """All chunks; the engine's sequence must be free by the time the outcome is there."""

    async def read() -> list[Chunk]:
        chunks = []
        request = GenerationRequest("job", (Message(Role.USER, "four"),), Sampling(**sampling))
        async for chunk in Answering(engine, policy).generate(request):
            chunks.append(chunk)
            if isinstance(chunk.outcome, Completed) and chunk.outcome.finish_reason in BY_GUARDS:
                assert engine.closed
        return chunks

    return asyncio.run(read())


def text_of(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def completed(chunks: Sequence[Chunk]) -> Completed:
    outcome = chunks[-1].outcome
    assert isinstance(outcome, Completed)
    return outcome


@pytest.fixture
def banned(tmp_path: Path) -> Any:
    def write(*lines: str) -> LanePolicy:
        file = tmp_path / "banned.txt"
        file.write_text("\n".join(lines), "utf-8")
        return lane(banned_file=str(file), repetition=False)

    return write


# --- repetition ----------------------------------------------------------------------------------------


def test_the_engine_is_told_of_the_guard_too() -> None:
    for wanted in (True, False):
        engine = Scripted("a")
        answer(engine, lane(repetition=wanted))
        assert engine.asked[0].stop_repetition is wanted


def test_few_different_tokens_in_a_full_window_end_the_text_and_free_the_sequence() -> None:
    engine = Scripted(*"abcd", *"abcdabcdabcd")
    chunks = answer(engine, lane())
    assert text_of(chunks) == "abcdabcdab"
    assert engine.sent == 10
    assert completed(chunks) == Completed(FinishReason.REPETITION, Usage(9, 10))
    assert sum(chunk.tokens for chunk in chunks) == 10


def test_a_window_with_as_many_as_it_must_have_goes_on() -> None:
    assert completed(answer(Scripted(*"abcde" * 6), lane())) == DONE
    assert completed(answer(Scripted(*"aaaa" * 2), lane())) == DONE, "the window is not full"


def test_tokens_count_by_their_ids_where_the_engine_tells_them() -> None:
    ids = [Chunk(text, 1, token_ids=(7,)) for text in "abcdefghijkl"]
    assert text_of(answer(Scripted(*ids), lane())) == "abcdefghij"
    several = [Chunk("same", 3, token_ids=(n, n + 1, n + 2)) for n in range(0, 90, 3)]
    assert completed(answer(Scripted(*several), lane())) == DONE
    at_once = Chunk("abcabcabcabc", 12, token_ids=(1, 2, 3) * 4)
    assert completed(answer(Scripted(at_once), lane())).usage.output_tokens == 12


def test_the_window_is_the_lanes_and_hot_has_none() -> None:
    assert not LANES["hot"].guards.repetition
    assert LANES["warm"].guards.repetition and LANES["cold"].guards.repetition
    looping = lane(repetition=False)
    assert completed(answer(Scripted(*"a" * 40), looping)) == DONE
    assert text_of(answer(Scripted(*"ab" * 9), lane(repetition_window=4, repetition_distinct=3))) == "abab"


def test_an_answer_that_the_guard_meets_at_its_end_keeps_the_engines_figures() -> None:
    last = Chunk("aaaa", 10, DONE, token_ids=(1,) * 10)
    engine = Scripted()
    engine.chunks = [last]
    outcome = completed(answer(engine, lane()))
    assert outcome == Completed(FinishReason.REPETITION, DONE.usage, DONE.timings)


# --- banned phrases ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("phrase", "pieces", "kept"),
    [
        ("red flag", ["a re", "d ", "fl", "ag b"], "a "),
        ("red flag", ["a red", "\n\n ", "Flag"], "a "),
        ("red flag", ["a red fla", "w"], "a red flaw"),
        ("禁止词语", ["这是禁", "止词", "典,禁止", "词语。"], "这是禁止词典,"),
        ("Straße", ["die STRAS", "SE"], "die "),
        ("office", ["the oﬃ", "ce"], "the "),
        ("ＦＵＬＬ", ["a f", "ull"], "a "),
        ("café", ["un cafe", "\u0301!"], "un "),
        ("cafe\u0301", ["un caf", "é"], "un "),
        ("cafe", ["un cafe", "\u0301!"], "un cafe\u0301!"),
        ("cafe", ["un café", " et un cafe"], "un café et un "),
        ("a\u0323\u0301", ["b a\u0301", "\u0323."], "b "),
        ("하", ["한하", "."], "한"),
        ("secret", ["a se\u00adc\u200bret"], "a "),
        ("❤", ["I ❤", "\ufe0f you"], "I "),
        ("Καλημέρα", ["ε καλημ", "ΈΡΑ"], "ε "),
        ("किताब", ["एक किता", "ब"], "एक "),
        ("कित", ["एक किता", "ब"], "एक किताब"),
        ("end", ["the en", "d"], "the "),
    ],
)
def test_no_banned_phrase_leaves_the_lane(banned: Any, phrase: str, pieces: list[str], kept: str) -> None:
    for split in (pieces, list("".join(pieces)), ["".join(pieces)]):
        chunks = answer(Scripted(*split), banned(phrase))
        assert text_of(chunks) == kept
        cut = kept != "".join(pieces)
        assert completed(chunks).finish_reason is (
            FinishReason.CONTENT_FILTER if cut else FinishReason.LENGTH
        )


def test_the_shortest_found_first_and_the_longest_of_those_is_cut(banned: Any) -> None:
    assert text_of(answer(Scripted("she said ushers"), banned("hers", "he", "she"))) == ""
    assert text_of(answer(Scripted("an abcd"), banned("bc", "abcde"))) == "an a"


def test_only_text_that_may_begin_a_phrase_waits(banned: Any) -> None:
    chunks = answer(Scripted("all ", "clear r", "ed ", "light"), banned("red flag"))
    assert [chunk.text for chunk in chunks] == ["all ", "clear ", "red light", ""]
    assert [chunk.tokens for chunk in chunks] == [1, 1, 2, 0]


def test_a_phrase_ends_the_job_with_the_usage_so_far(banned: Any) -> None:
    engine = Scripted("one ", "two ", "three ", "four ")
    chunks = answer(engine, banned("# no phrase", "", "  THREE  "))
    assert completed(chunks) == Completed(FinishReason.CONTENT_FILTER, Usage(9, 3))
    assert engine.sent == 3


def test_an_outcome_that_is_no_answer_stays_what_it_is(banned: Any) -> None:
    refused = Rejected("prompt_too_long", "too long")
    assert answer(Scripted("bad", outcome=refused), banned("bad"))[-1].outcome == refused


def test_hundreds_of_phrases_cost_a_moment(banned: Any) -> None:
    automaton = compiled(tuple(f"{word} {n}" for n in range(400) for word in ("aaaa", "bad word", "坏词")))
    guard = Banned(automaton)
    text = "aaa aaaa bad wor 坏 the sea is wide " * 3_000
    started = time.process_time()
    assert guard.see(text, (), last=True).text == text
    assert time.process_time() - started < 2.0


def test_a_list_that_cannot_be_read_stops_the_worker(tmp_path: Path) -> None:
    for content in (None, "", "# only a comment"):
        file = tmp_path / "phrases.txt"
        if content is not None:
            file.write_text(content)
        with pytest.raises(GuardUnusable, match=r"phrases\.txt"):
            Answering(Scripted(), lane(banned_file=str(file)))


def test_all_choices_are_cut_and_the_others_waited_for(banned: Any) -> None:
    def said(text: str) -> Choice:
        tokens = tuple(TokenLogprob(c, -1.0, ((c, -1.0), ("bad", -2.0))) for c in text)
        return Choice(text, FinishReason.STOP, tokens)

    outcome = Completed(
        FinishReason.STOP, Usage(5, 30), choices=(said("a bad one"), said("fine"), said("so bad"))
    )
    engine = Scripted("a b", "ad", " one", outcome=outcome)
    chunks = answer(engine, banned("BAD"), n=3, logprobs=True)
    got = completed(chunks)
    assert text_of(chunks) == "a "
    assert (got.finish_reason, got.usage) == (FinishReason.CONTENT_FILTER, Usage(5, 30))
    assert [choice.text for choice in got.choices] == ["a ", "fine", "so "]
    assert [choice.finish_reason for choice in got.choices] == ["content_filter", "stop", "content_filter"]
    assert ["".join(one.token for one in choice.logprobs or ()) for choice in got.choices] == [
        "a ",
        "fine",
        "so ",
    ]
    assert "bad" not in str(got)


def test_a_streamed_choice_ends_where_the_stream_ended() -> None:
    outcome = Completed(
        FinishReason.LENGTH, Usage(5, 30), choices=(Choice("a" * 15, FinishReason.LENGTH),) * 2
    )
    got = completed(answer(Scripted(*"a" * 15, outcome=outcome), lane(), n=2))
    assert [choice.text for choice in got.choices] == ["a" * 10, "a" * 15]
    assert [choice.finish_reason for choice in got.choices] == ["repetition", "length"]


def test_an_ended_answer_is_a_choice_where_log_probabilities_were_asked_for(banned: Any) -> None:
    chunks = answer(Scripted("so ", "bad."), banned("bad"), logprobs=True)
    assert completed(chunks).choices == (Choice("so ", FinishReason.CONTENT_FILTER),)


# --- favoured phrases ----------------------------------------------------------------------------------


def favouring(tmp_path: Path, bias: float = 3.0) -> LanePolicy:
    file = tmp_path / "favoured.txt"
    file.write_text("lighthouse\nkind regards\n")
    return lane(favoured_file=str(file), favoured_bias=bias)


def test_favoured_phrases_reach_the_engine_as_a_bias_under_the_jobs_own(tmp_path: Path) -> None:
    counter = TokenCounter(smollm2_path())
    policy, engine = favouring(tmp_path), Scripted("x")
    tokens = {
        str(id) for ids in counter.ids(["lighthouse", " lighthouse", "kind regards"]) or () for id in ids
    }
    own = next(iter(tokens))

    async def ask() -> None:
        request = GenerationRequest("job", (), Sampling(logit_bias={own: -7.0, "1": 2.0}))
        async for _ in Answering(engine, policy, counter).generate(request):
            pass

    asyncio.run(ask())
    bias = engine.asked[0].sampling.logit_bias or {}
    assert tokens <= bias.keys()
    assert (bias[own], bias["1"]) == (-7.0, 2.0)
    assert {bias[token] for token in tokens - {own}} == {3.0}


def test_phrases_that_cannot_be_favoured_stop_the_worker(tmp_path: Path) -> None:
    with pytest.raises(GuardUnusable, match="tokenizer"):
        Answering(Scripted(), favouring(tmp_path))
    plain = Scripted()
    plain.parameters = BASIC_PARAMETERS
    with pytest.raises(GuardUnusable, match="logit_bias"):
        Answering(plain, favouring(tmp_path), TokenCounter(smollm2_path()))


def test_a_lane_that_favours_phrases_starts_without_speculation() -> None:
    speculating = EnginePolicy(speculation=SpeculationPolicy())
    plain = LanePolicy("lane", frozenset(), None, None, 4_096, 1, 0, engine=speculating)
    favours = LanePolicy(
        "lane",
        frozenset(),
        None,
        None,
        4_096,
        1,
        0,
        engine=speculating,
        guards=GuardPolicy(favoured_file="f"),
    )
    assert effective(plain) == speculating
    assert effective(favours) == EnginePolicy()


def test_the_parts_by_themselves() -> None:
    assert phrases.normalised("  Ｆull \t ﬁre ") == "full fire"
    assert favoured.favouring(Sampling(), {"5": 1.0}).logit_bias == {"5": 1.0}
    assert Repetition(2, 2).see("", (), last=False).ends is None


def test_a_parameter_that_the_engine_lacks_is_refused_by_name() -> None:
    outcome = answer_outcome(Scripted(), top_k=3)
    assert isinstance(outcome, Rejected) and outcome.message.startswith("top_k")
    assert answer_outcome(Scripted(), windows=False) == DONE


def answer_outcome(engine: Scripted, **sampling: Any) -> Outcome | None:
    async def last() -> Outcome | None:
        request = GenerationRequest("job", (), Sampling(**sampling))
        return [chunk async for chunk in Answering(engine, lane()).generate(request)][-1].outcome

    return asyncio.run(last())
