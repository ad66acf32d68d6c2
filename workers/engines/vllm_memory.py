"""Memory that runs out: told from the log of vLLM's core process, answered with half the batch."""

import json
import re
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from workers.engines.registry import EngineConfig

REMEDY = (
    "Lower max_model_len or choose another precision for the lane, or give its engine more memory"
    " (memory_share, tensor_parallel)."
)
_LEAST_BATCHED_TOKENS = 512
_SHORTAGE = re.compile(
    "out of memory|OutOfMemoryError|No available memory for the cache blocks"
    "|larger than the available KV cache memory"
)
_ERROR = re.compile(r"^(?:[\w.]+\.)?\w*(?:Error|Exception|Exit): .+", re.MULTILINE)


class CoreLog:
    """The errors of vLLM's processes, in a file of their own.

    The core is another process and tells its parent only that it failed, not why.
    """

    def __init__(self) -> None:
        self._directory = TemporaryDirectory(prefix="trilane-vllm-")
        self.path = Path(self._directory.name, "errors.log")

    def configuration(self, default: dict[str, Any]) -> str:
        """The path of a logging configuration: vLLM's `default` one and this file."""
        config = deepcopy(default)
        config.setdefault("formatters", {})["errors"] = {"format": "%(message)s"}
        config["handlers"]["errors"] = {
            "class": "logging.FileHandler",
            "filename": str(self.path),
            "formatter": "errors",
            "level": "ERROR",
            "delay": True,
        }
        config["loggers"]["vllm"]["handlers"].append("errors")
        path = self.path.with_name("logging.json")
        path.write_text(json.dumps(config))
        return str(path)

    def short_of_memory(self) -> str | None:
        """The line that tells of too little memory, if there is one."""
        return next((line for line in self._text().splitlines() if _SHORTAGE.search(line)), None)

    def cause(self) -> str | None:
        """The first error: those after it follow from it."""
        return self.short_of_memory() or ((found := _ERROR.search(self._text())) and found[0]) or None

    def _text(self) -> str:
        return self.path.read_text(errors="replace") if self.path.exists() else ""

    def clear(self) -> None:
        """Forget what was logged."""
        if self.path.exists():
            self.path.write_text("")

    def close(self) -> None:
        """Remove the file."""
        self._directory.cleanup()


def halved(config: EngineConfig) -> EngineConfig | None:
    """The same engine with half the sequences and half the tokens in a step; None where both are least."""
    policy = config.policy
    sequences = max(1, policy.sequences // 2)
    batched_tokens = min(policy.batched_tokens, max(_LEAST_BATCHED_TOKENS, policy.batched_tokens // 2))
    if (sequences, batched_tokens) == (policy.sequences, policy.batched_tokens):
        return None
    return replace(
        config,
        slots=min(config.slots, sequences),
        policy=replace(policy, sequences=sequences, batched_tokens=batched_tokens),
    )
