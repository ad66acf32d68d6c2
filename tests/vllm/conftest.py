"""What all tests on real vLLM share: the tiny Llama and one engine with it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.domain.policies import EnginePolicy, Scheduling
from tests.vllm import models
from tests.vllm.driver import Driver

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Model and scheduler in one core process, as on one card; the CPU build would split them, and start slower.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # log-probabilities would compile for a minute

pytest.register_assert_rewrite("tests.contract.test_engines")


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny Llama."""
    return models.tiny_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny(tiny_llama: Path) -> Iterator[Driver]:
    """One engine with it for all tests that only ask; two sequences at once, the urgent first."""
    policy = EnginePolicy(2, batched_tokens=512, scheduling=Scheduling.PRIORITY)
    with Driver.started(tiny_llama, policy) as driver:
        yield driver
