"""What all tests on real vLLM share."""

import os

import pytest

# vLLM's processes inherit these: two engines on one machine must not pin themselves to the same core.
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest.register_assert_rewrite("tests.contract.test_engines")
