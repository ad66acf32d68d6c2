"""Lets one engine at a time start on a card, whichever process it is in.

vLLM measures a card's free memory while it starts; two that start at once count each other's as their own.
The lock is POSIX's record lock, which ends with the process that took it and is not inherited by those that
it forks (fcntl(2)). It holds between processes, not inside one.
"""

import asyncio
import fcntl
import os
import stat
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TextIO

import structlog

_LOOK_EVERY_S = 0.2

log = structlog.get_logger()


class PrivateDirectoryError(OSError):
    """The directory for locks belongs to somebody else, or others can write in it."""


@asynccontextmanager
async def starting(gpus: Sequence[int]) -> AsyncIterator[None]:
    """Hold the cards while an engine starts on them; waits as long as another process holds one."""
    with ExitStack() as held:
        for gpu in sorted(set(gpus)):  # in one order everywhere, so that no two wait for each other
            file = held.enter_context(_open(f"card-{gpu}.lock"))
            await _take(file, gpu)
        yield


@contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold the lock of this name; the thread waits until no other process does."""
    with _open(f"{name}.lock") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        yield


def private_directory() -> Path:
    """This user's own directory for what Trilane's processes on this machine share; made where it is missing.

    Raises `PrivateDirectoryError` where somebody else may have put it there.
    """
    path = Path(tempfile.gettempdir()) / f"trilane-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise PrivateDirectoryError(
            f"{path} is not this user's alone: remove it, or set TMPDIR to a directory of this user"
        )
    return path


def _open(name: str) -> TextIO:
    return (private_directory() / name).open("a+")


async def _take(file: TextIO, gpu: int) -> None:
    if not _is_free(file):
        began = time.monotonic()
        log.info("card.waiting", gpu=gpu, holder=_holder(file))
        # Asking again can be cancelled; a thread that waits in the lock could not.
        while not _is_free(file):  # noqa: ASYNC110 - other processes send no event
            await asyncio.sleep(_LOOK_EVERY_S)
        log.info("card.waited", gpu=gpu, waited_s=time.monotonic() - began)
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()


def _is_free(file: TextIO) -> bool:
    """Whether the lock was free; it is ours then."""
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # POSIX leaves the choice of the two
        return False
    return True


def _holder(file: TextIO) -> str:
    file.seek(0)
    return file.read() or "unknown"
