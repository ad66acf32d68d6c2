"""The lock of a card: one process at a time starts on it, and a dead one holds nothing."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.waiting import until
from workers import card_lock
from workers.card_lock import PrivateDirectoryError

# Holds the cards that it is given until its standard input ends.
HOLDER = """
import asyncio, sys
from workers import card_lock

async def main():
    async with card_lock.starting([int(gpu) for gpu in sys.argv[1:]]):
        print("holds", flush=True)
        await asyncio.to_thread(sys.stdin.read)
    print("released", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory for temporary files that only this test knows."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


class Holder:
    """Another process that starts on cards."""

    def __init__(self, directory: Path, *gpus: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *map(str, gpus)],
            env={**os.environ, "TMPDIR": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def release(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@pytest.fixture
def holder(directory: Path) -> Iterator[Holder]:
    """A process that holds card 1."""
    started = Holder(directory, 1)
    assert started.says() == "holds"
    yield started
    started.end()


async def take(*gpus: int) -> None:
    async with card_lock.starting(gpus):
        pass


async def waiting(holder: Holder, *gpus: int) -> "asyncio.Task[None]":
    """A start that has found a card held, and says by whom; the loop goes on meanwhile."""
    with capture_logs() as logged:
        starting = asyncio.create_task(take(*gpus))
        async with asyncio.timeout(20):
            while not logged:
                await asyncio.sleep(0.01)
    assert [(one["event"], one["holder"]) for one in logged] == [("card.waiting", str(holder.process.pid))]
    assert not starting.done()
    return starting


def test_a_start_waits_until_the_other_has_ended(holder: Holder) -> None:
    async def run() -> None:
        starting = await waiting(holder, 1)
        holder.release()
        await asyncio.wait_for(starting, 20)

    asyncio.run(run())
    assert holder.says() == "released"
    assert holder.process.poll() is None, "it let go of the card before its end"


def test_a_process_that_dies_holds_nothing(holder: Holder) -> None:
    async def run() -> None:
        starting = await waiting(holder, 1)
        holder.process.kill()
        await asyncio.wait_for(starting, 20)

    asyncio.run(run())


def test_other_cards_are_free(holder: Holder) -> None:
    asyncio.run(asyncio.wait_for(take(0, 2), 20))


def test_a_cancelled_start_gives_back_what_it_had(holder: Holder, directory: Path) -> None:
    async def run() -> None:
        starting = await waiting(holder, 2, 1, 0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(run())
    other = Holder(directory, 0)
    assert other.says() == "holds"
    other.end()


def test_no_cards_no_lock(directory: Path) -> None:
    asyncio.run(take())
    assert list(directory.iterdir()) == []


def test_a_named_lock_is_one_process_at_a_time(directory: Path) -> None:
    code = "from workers import card_lock\nwith card_lock.locked('mps'): print('in', flush=True)"
    with card_lock.locked("mps"):
        env = {**os.environ, "TMPDIR": str(directory)}
        other = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True)
        until(lambda: _waits_in_the_lock(other.pid), what="the wait for the lock")
    assert other.communicate(timeout=20)[0] == "in\n"


def _waits_in_the_lock(pid: int) -> bool:
    """Whether the kernel says that the process waits for a lock; `->` marks waiters (proc_locks(5))."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and str(pid) in line.split() for line in lines)


def test_a_directory_that_others_can_write_in_is_refused(directory: Path) -> None:
    (directory / f"trilane-{os.getuid()}").mkdir(mode=0o777)
    (directory / f"trilane-{os.getuid()}").chmod(0o777)
    with pytest.raises(PrivateDirectoryError, match="remove it"):
        asyncio.run(take(0))
