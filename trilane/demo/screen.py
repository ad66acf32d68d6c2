"""What the demo shows while it runs: each lane's progress, live on a terminal, else in plain lines."""

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

_LINE_EVERY_S = 10.0  # between two plain lines


class Screen:
    """The console of one run. Use it with `with`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Progress(
            TextColumn("  {task.description:<5}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[now]:<22}", style="dim"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last_line_s = -_LINE_EVERY_S

    def detail(self, line: str) -> None:
        """Show a line that matters less, uncut, so that it can be copied."""
        self._console.print(Text(f"  {line}", style="dim"), soft_wrap=True)

    def phase(self, line: str) -> None:
        """Say what begins now."""
        self._console.print(Text(line, style="bold"))
        self._last_line_s = -_LINE_EVERY_S

    def progress(
        self, lanes: Mapping[str, Sequence[str]], planned: Mapping[str, int], elapsed_s: float
    ) -> None:
        """Show each lane: the statuses of the jobs it was sent, out of those that are planned for it."""
        if self._console.is_terminal:
            for lane, total in planned.items():
                ended, now = _counts(lanes.get(lane, ()))
                if lane not in self._tasks:
                    self._tasks[lane] = self._live.add_task(lane, now=now)
                self._live.update(self._tasks[lane], completed=ended, total=total, now=now)
        elif elapsed_s - self._last_line_s >= _LINE_EVERY_S:
            shown = ((lane, total, *_counts(lanes.get(lane, ()))) for lane, total in planned.items())
            line = " · ".join(
                f"{lane} {ended}/{total}" + (f", {now}" if now else "") for lane, total, ended, now in shown
            )
            self.detail(f"{elapsed_s:4.0f} s  {line}")
            self._last_line_s = elapsed_s

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def _counts(statuses: Sequence[str]) -> tuple[int, str]:
    """How many have ended, and in words what the others do."""
    running, waiting = statuses.count("running"), statuses.count("queued")
    now = ", ".join(f"{n} {word}" for n, word in ((running, "running"), (waiting, "waiting")) if n)
    return len(statuses) - running - waiting, now
