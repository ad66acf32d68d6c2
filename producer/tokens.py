"""Counting the tokens of a prompt before it is routed: with the model's tokenizer, or by an estimate."""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from jobs import gguf
from jobs.domain import tokens
from jobs.domain.requests import Message, Role

log = structlog.get_logger(__name__)

# The one chat template that is rendered here, SmolLM2's: ChatML, with a system message where none is given.
_TEMPLATE = re.compile(
    re.escape(
        "{% for message in messages %}"
        "{% if loop.first and messages[0]['role'] != 'system' %}"
        "{{ '<|im_start|>system\nSYSTEM<|im_end|>\n' }}{% endif %}"
        "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ).replace("SYSTEM", "([^<]*)")
)
# Token types of llama.cpp (enum llama_token_type) that are recognised inside a prompt: control, user-defined.
_SPECIAL = (3, 4)
_DROPPED = "\0dropped"  # no text becomes this token: the byte-level alphabet has no NUL


class TokenCounter:
    """Counts what an engine will see of a chat prompt, the opening of the answer included.

    Exact if `model_path` is a GGUF file with SmolLM2's kind of tokenizer and chat template: its vocabulary is
    then loaded at the first count (0.2 s, 20 MB; no weights). Else by `jobs.domain.tokens.estimate`, which
    states its limits. Safe in threads. 100 KB of text take 50 to 150 ms.
    """

    def __init__(self, model_path: Path | None = None) -> None:
        self._path = model_path

    @property
    def is_exact(self) -> bool:
        """Whether counts are the engine's own."""
        return self._chat is not None

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that `messages` make."""
        return self._chat.count(messages) if self._chat else tokens.estimate(messages)

    @cached_property
    def _chat(self) -> "_Chat | None":
        if self._path is None:
            return None
        try:
            return _Chat(gguf.read_metadata(self._path))
        except (OSError, ValueError) as error:
            log.warning("tokenizer.unavailable", file=self._path.name, reason=str(error), counting="estimate")
            return None


class _Chat:
    """The tokenizer and the chat template of a model."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        """Raise `ValueError` if the metadata describes another kind than SmolLM2's."""
        kind = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
        template = _TEMPLATE.fullmatch(metadata.get("tokenizer.chat_template", ""))
        if kind != ("gpt2", "smollm") or template is None:
            raise ValueError(f"no exact counting for a tokenizer of kind {kind} with this chat template")
        vocabulary = metadata["tokenizer.ggml.tokens"]
        # llama.cpp drops the few bytes that the vocabulary lacks, but after merging, not before.
        self._dropped = len(vocabulary)
        ids = {token: id for id, token in enumerate([*vocabulary, _DROPPED])}
        merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
        self._tokenizer = Tokenizer(models.BPE(ids, merges, unk_token=_DROPPED))
        self._tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        types = metadata["tokenizer.ggml.token_type"]
        special = [token for token, kind in zip(vocabulary, types, strict=True) if kind in _SPECIAL]
        self._tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
        self._default_turn = self._turn(Role.SYSTEM, template[1])
        self._opening = self._length("<|im_start|>assistant\n")

    def count(self, messages: Sequence[Message]) -> int:
        # Turn by turn, which is exact since every turn begins with a special token: so the default system
        # message, longer than many a prompt, is counted once and for all.
        count = self._opening + sum(self._turn(message.role, message.content) for message in messages)
        if messages and messages[0].role is not Role.SYSTEM:
            count += self._default_turn
        return count

    def _turn(self, role: str, content: str) -> int:
        # A lone surrogate is refused elsewhere; here it must only not break the count.
        storable = content.encode(errors="replace").decode()
        return self._length(f"<|im_start|>{role}\n{storable}<|im_end|>\n")

    def _length(self, text: str) -> int:
        ids = self._tokenizer.encode(text).ids
        return len(ids) - ids.count(self._dropped)
