"""Fixtures that several unit tests share."""

from pathlib import Path

import pytest


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that settings are read from."""
    monkeypatch.setenv("TRILANE_CONFIG", str(tmp_path / "trilane.toml"))
    return tmp_path / "trilane.toml"
