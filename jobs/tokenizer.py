"""The model's tokens without its engine: prompts counted, texts encoded; where it is not there, estimated."""

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import structlog
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from jobs import gguf
from jobs.domain import tokens
from jobs.domain.requests import Message, Role
from jobs.model_files import ModelFileMissing, smollm2_path
from jobs.settings import EngineSettings

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


class _Vocabulary(Protocol):
    """A model's tokenizer."""

    exact: bool

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int]:
        """Tokens of each chat prompt."""
        ...

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The token ids of each text."""
        ...


class TokenCounter:
    """Counts what an engine will see of a chat prompt, the opening of the answer included.

    Exact if `model_path` is a GGUF file with SmolLM2's kind of tokenizer and chat template: its vocabulary is
    then loaded at the first count (0.2 s, 20 MB; no weights). In a directory with a `tokenizer.json` the
    messages' text is counted exactly and the chat template is taken for ChatML. Else by
    `jobs.domain.tokens.estimate`, which states its limits. Safe in threads. 100 KB of text take 50 to 150 ms.
    """

    def __init__(self, model_path: Path | None = None) -> None:
        self._path = model_path

    @classmethod
    def of(cls, settings: EngineSettings, engine: str | None = None) -> "TokenCounter":
        """The counter for what `engine` (None: the setting's) serves."""
        path = settings.model_path
        if path is None and (engine or settings.name) == "llamacpp":
            try:
                path = smollm2_path()
            except ModelFileMissing:
                path = None
        return cls(path)

    @property
    def is_exact(self) -> bool:
        """Whether counts are the engine's own."""
        return self._vocabulary is not None and self._vocabulary.exact

    def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt that `messages` make."""
        return self.count_many([messages])[0]

    def count_many(self, prompts: Sequence[Sequence[Message]]) -> list[int]:
        """`count` of each prompt; for many it uses all cores."""
        if self._vocabulary is None:
            return [tokens.estimate(prompt) for prompt in prompts]
        return self._vocabulary.count(prompts)

    def count_texts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text by itself, without a chat template."""
        if self._vocabulary is None:
            return [tokens.of_text(text) for text in texts]
        return [len(ids) for ids in self._vocabulary.ids(texts)]

    def ids(self, texts: Sequence[str]) -> list[list[int]] | None:
        """The token ids of each text; None where the model's tokenizer is not here."""
        return self._vocabulary.ids(texts) if self._vocabulary else None

    @cached_property
    def _vocabulary(self) -> _Vocabulary | None:
        if self._path is None:
            return None
        try:
            if self._path.is_dir():
                return _Plain(self._path / "tokenizer.json")
            return _Chat(gguf.read_metadata(self._path))
        except (OSError, ValueError) as error:
            log.warning("tokenizer.unavailable", file=self._path.name, reason=str(error), counting="estimate")
            return None


class _Plain:
    """The tokenizer of a Hugging Face checkpoint, with ChatML's overhead for its chat template."""

    exact = False

    def __init__(self, file: Path) -> None:
        """Raise `OSError` where there is no such file, `ValueError` where it is no tokenizer."""
        try:
            self._tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except OSError:
            raise
        except Exception as error:  # the tokenizers package raises nothing narrower
            raise ValueError(f"no tokenizer in {file.name}") from error

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int]:
        lengths = iter(map(len, self.ids([message.content for prompt in prompts for message in prompt])))
        return [
            tokens.ANSWER_OVERHEAD + tokens.MESSAGE_OVERHEAD * len(prompt) + sum(islice(lengths, len(prompt)))
            for prompt in prompts
        ]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        storable = [_storable(text) for text in texts]
        return [coded.ids for coded in self._tokenizer.encode_batch_fast(storable, add_special_tokens=False)]


class _Chat:
    """The tokenizer and the chat template of a model."""

    exact = True

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
        self._default_turn, self._opening = self._lengths(
            [_turn(Role.SYSTEM, template[1]), "<|im_start|>assistant\n"]
        )

    def count(self, prompts: Sequence[Sequence[Message]]) -> list[int]:
        # Turn by turn, which is exact since every turn begins with a special token: so the default system
        # message, longer than many a prompt, is counted once and for all.
        lengths = iter(self._lengths([_turn(m.role, m.content) for prompt in prompts for m in prompt]))
        return [self._frame(prompt) + sum(islice(lengths, len(prompt))) for prompt in prompts]

    def _frame(self, prompt: Sequence[Message]) -> int:
        """What the template adds around the prompt's own turns."""
        given = not prompt or prompt[0].role is Role.SYSTEM
        return self._opening + (0 if given else self._default_turn)

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        encodings = self._tokenizer.encode_batch_fast([_storable(text) for text in texts])
        return [[id for id in encoding.ids if id != self._dropped] for encoding in encodings]

    def _lengths(self, texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in self.ids(texts)]


def _turn(role: str, content: str) -> str:
    return f"<|im_start|>{role}\n{content}<|im_end|>\n"


def _storable(text: str) -> str:
    # A lone surrogate is refused elsewhere; here it must only not break the count.
    return text.encode(errors="replace").decode()
