"""NVML as the module `pynvml` shows it, on a machine with the cards that a test names."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from workers.planning.cards import MIB


class NvmlError(Exception):
    """NVML's own error."""


@dataclass(frozen=True)
class FakeNvml:
    """Cards of a name, MiB, capability, and what their memory bus is; `lost` are those that do not answer.

    `processes` are those that hold memory of a card, and the bytes of each; None: the driver does not tell
    which there are. The names of the functions are NVML's.
    """

    cards: list[tuple[str | bytes, int, tuple[int, int], int, int]]
    lost: set[int] = field(default_factory=set)
    processes: dict[int, int | None] | None = None
    NVMLError = NvmlError
    NVML_CLOCK_MEM = 2

    def __getattr__(self, name: str) -> Any:
        """`nvmlDeviceGet...` of a card by what it gives; raises as Python does for any other name."""
        reading = {
            "nvmlDeviceGetName": lambda index: self.cards[index][0],
            "nvmlDeviceGetMemoryInfo": lambda index: SimpleNamespace(
                total=self.cards[index][1] * MIB, used=1_024 * MIB
            ),
            "nvmlDeviceGetCudaComputeCapability": lambda index: self.cards[index][2],
            "nvmlDeviceGetMaxClockInfo": lambda index, _: self.cards[index][3],
            "nvmlDeviceGetMemoryBusWidth": lambda index: self.cards[index][4],
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=75, memory=40),
            "nvmlDeviceGetComputeRunningProcesses": self._processes,
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlDeviceGetCount": lambda: len(self.cards),
        }
        if name not in reading:
            raise AttributeError(name)
        return reading[name]

    def _processes(self, _: int) -> list[SimpleNamespace]:
        if self.processes is None:
            raise NvmlError
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes.items()]

    def _handle(self, index: int) -> int:
        if index in self.lost:
            raise NvmlError
        return index
