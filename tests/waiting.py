"""Waits for a condition, never for a time."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], timeout_s: float = 20.0, what: str = "the condition") -> T:
    """The first true answer of `condition`; raises `AssertionError` if there is none within `timeout_s`."""
    never = threading.Event()
    deadline = time.monotonic() + timeout_s
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {timeout_s} s; last answer: {answer!r}")
        never.wait(0.02)
