"""Secrets of one data directory: made once, kept readable by their owner alone."""

import os
import secrets
import threading
from collections.abc import Callable
from pathlib import Path


def kept(path: Path, make: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> str:
    """The secret in the file at `path`; made and written first if the file is not there."""
    if path.exists():
        return path.read_text()
    secret = make()
    write_private(path, secret)
    return secret


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 whole: a reader sees the old text or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{threading.get_native_id()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
