"""Ends a server that a killed run left behind, and removes its stale pid file."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from trilane.stack import StackError

TIMEOUT_S = 20.0


def end(pid_file: Path, *, marker: str, number: signal.Signals = signal.SIGTERM) -> None:
    """Send the signal to the process of the pid file, if its command line holds `marker`, until it is gone.

    A process that took over the number of a dead server does not hold the marker and is left alone.
    Raises `StackError` if the server will not end.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while (pid := _first_number(pid_file)) is not None and _runs(pid, marker):
        if time.monotonic() > deadline:
            raise StackError(f"process {pid} of an earlier run will not end: end it, then start again")
        with suppress(ProcessLookupError):
            os.kill(pid, number)
        time.sleep(0.2)
    pid_file.unlink(missing_ok=True)


def _first_number(pid_file: Path) -> int | None:
    try:
        return int(pid_file.read_text().split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _runs(pid: int, marker: str) -> bool:
    try:
        return any(marker in word for word in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False
