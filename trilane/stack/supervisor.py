"""Starts the stack's parts as child processes, restarts those that crash, and leaves none behind.

Each part has a thread that spawns it and waits for its end. The thread must outlive the process: Linux
sends a child its parent-death signal when the thread that made it ends.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trilane.stack import StackError, child

PROBE_EVERY_S = 0.1
STEADY_AFTER_S = 30.0  # a part that ran this long starts again with the shortest backoff


@dataclass(frozen=True)
class Part:
    """One child process: what it runs, how it is known to be ready, and how it is ended."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] = lambda: True
    niceness: int = 0
    user: str | None = None  # None: the user of this process
    stop_signal: signal.Signals = signal.SIGTERM
    death_signal: signal.Signals = signal.SIGKILL  # what it gets when this process dies
    start_timeout_s: float = 180.0  # a niced part on a busy machine starts slowly


class Supervisor:
    """Keeps parts running until `stop`.

    `say` gets one line for each thing an operator should know; `restarted` is called, from another
    thread, when a crashed part has a new process.
    """

    def __init__(
        self,
        logs: Path,
        say: Callable[[str], None],
        restarted: Callable[[], None] = lambda: None,
        *,
        backoff_s: float = 0.5,
        backoff_cap_s: float = 30.0,
        grace_s: float = 25.0,
    ) -> None:
        self.logs, self._say, self._restarted = logs, say, restarted
        self._backoff_s, self._backoff_cap_s, self._grace_s = backoff_s, backoff_cap_s, grace_s
        self.stopping = threading.Event()
        self._batches: list[list[_Keeper]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, *parts: Part) -> None:
        """Start the parts together and return when each is ready.

        Raises `StackError` with the end of the part's log if one ends or does not become ready in time;
        what was started is left to `stop`.
        """
        keepers = [_Keeper(part, self) for part in parts]
        self._batches.append(keepers)
        for keeper in keepers:
            keeper.start()
        begun, waiting = time.monotonic(), list(keepers)
        while waiting and not self.stopping.wait(PROBE_EVERY_S):
            for keeper in list(waiting):
                if keeper.is_ready(time.monotonic() - begun):
                    waiting.remove(keeper)
                    self._say(f"{keeper.part.name} is ready after {time.monotonic() - begun:.1f} s")

    def pids(self) -> dict[str, int]:
        """The process id of each part that runs now."""
        keepers = (keeper for batch in self._batches for keeper in batch)
        return {keeper.part.name: keeper.pid for keeper in keepers if keeper.pid is not None}

    def stop(self) -> None:
        """End every part, the last started first: its stop signal, then SIGKILL after the grace time."""
        self.stopping.set()
        for batch in reversed(self._batches):
            for keeper in batch:
                keeper.send(keeper.part.stop_signal)
            deadline = time.monotonic() + self._grace_s
            for keeper in batch:
                keeper.end(max(0.0, deadline - time.monotonic()))
        self._batches.clear()

    def crashed(self, keeper: "_Keeper", code: int, failures: int) -> float:
        """Say that a part ended; return how long to wait before it starts again, in seconds."""
        delay_s: float = min(self._backoff_s * 2.0 ** min(failures - 1, 16), self._backoff_cap_s)
        self._say(
            f"{keeper.part.name} ended {_how(code)}: starts again in {delay_s:g} s; see {keeper.log_path}"
        )
        return delay_s

    def restarted(self, keeper: "_Keeper") -> None:
        """Say that a part that had ended runs again."""
        self._say(f"{keeper.part.name} runs again as process {keeper.pid}")
        self._restarted()


class _Keeper:
    """One part, its process and the thread that keeps it running."""

    def __init__(self, part: Part, owner: Supervisor) -> None:
        self.part, self._owner = part, owner
        self.log_path = owner.logs / f"{part.name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()  # no process is spawned once the stop signal has been sent
        self._was_ready = False
        self._thread = threading.Thread(target=self._keep, name=f"keep-{part.name}", daemon=True)

    @property
    def pid(self) -> int | None:
        process = self._process
        return process.pid if process is not None and process.returncode is None else None

    def start(self) -> None:
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".log.1"))  # One older run is kept.
        self._thread.start()

    def is_ready(self, waited_s: float) -> bool:
        self._was_ready = self.pid is not None and self.part.ready()
        if self._was_ready:
            return True
        if not self._thread.is_alive():
            raise StackError(f"{self.part.name} ended before it was ready. {self._log_end()}")
        if waited_s > self.part.start_timeout_s:
            raise StackError(f"{self.part.name} was not ready after {waited_s:.0f} s. {self._log_end()}")
        return False

    def send(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)

    def end(self, grace_s: float) -> None:
        if self._thread.ident is None:
            return  # An interrupt came before its start.
        self._thread.join(grace_s)
        if self._process is not None:
            _kill_group(self._process.pid)
        self._thread.join()

    def _keep(self) -> None:
        failures = 0
        while (process := self._spawn()) is not None:
            if failures:
                self._owner.restarted(self)
            begun = time.monotonic()
            code = process.wait()
            _kill_group(process.pid)
            if self._owner.stopping.is_set() or not self._was_ready:
                return
            failures = 1 if time.monotonic() - begun > STEADY_AFTER_S else failures + 1
            self._owner.stopping.wait(self._owner.crashed(self, code, failures))

    def _spawn(self) -> subprocess.Popen[bytes] | None:
        part = self.part
        argv = child.wrapped(
            part.argv, death_signal=part.death_signal, niceness=part.niceness, user=part.user
        )
        with self._lock, self.log_path.open("ab") as log:
            if self._owner.stopping.is_set():
                return None
            self._process = subprocess.Popen(
                argv,
                env={**os.environ, **part.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal reaches us alone. No session of its own: Linux with autogroups
                # (sched(7)) divides the processors by session first, and between sessions no niceness counts.
                process_group=0,
            )
            return self._process

    def _log_end(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()[-15:]
        return "\n  ".join([f"The end of {self.log_path}:", *lines])


def _kill_group(pid: int) -> None:
    """End what the part itself left running."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
