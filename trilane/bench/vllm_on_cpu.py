"""vLLM in benchmarks and tests: the model that the tests make, and how it runs without a card."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trilane.stack import StackError

# As on one card, model and scheduler in one process; a first compilation of the model would take longer than
# what is asked of it.
OPTIONS: Mapping[str, Any] = {
    "dtype": "float32",
    "enforce_eager": True,
    "distributed_executor_backend": "uni",
}
VARIABLES: Mapping[str, str] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
_MADE = "run make test-vllm once, and then .venv-vllm/bin/trilane"


def model(given: Path | None, named_by: str) -> Path:
    """The model's folder: that which is `given`, else SmolLM2's.

    Raises `StackError` where there is none, or no vLLM; the message tells what names a folder.
    """
    if find_spec("vllm") is None:
        raise StackError(f"vLLM is not installed here: {_MADE}")
    made = Path(sys.prefix, "models", "smollm2")
    if given is None and not made.exists():
        raise StackError(f"vLLM needs a model: name its folder with {named_by}, or {_MADE}")
    return given or made
