"""One whole stack for the end-to-end tests that only use it."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trilane.stack import local


@pytest.fixture(scope="session")
def stack_home() -> Iterator[Path]:
    """The data directory of the shared stack."""
    with tempfile.TemporaryDirectory(prefix="trilane-e2e-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def stack(stack_home: Path) -> Iterator[local.Stack]:
    """One stack with the sim engine for all tests that only use it; webhooks may reach loopback."""
    options = local.Options(
        data_dir=stack_home,
        engine="sim",
        webhook_allow=("127.0.0.1/32",),
        api_port=0,
        flower_port=0,
    )
    with local.running(options) as running:
        yield running
