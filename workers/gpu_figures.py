"""What a worker's cards do now, by NVML: memory used, and the busy shares of cores and memory bus."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workers.planning import cards


class GpuFigures:
    """Reads the figures of the cards with these numbers; cheap enough for every report of a worker.

    `nvml` stands for the module `pynvml`, opened; None loads it. Without a driver there are no figures.
    """

    def __init__(self, gpus: Sequence[int], nvml: Any = None) -> None:
        """Open NVML once, unless there is no card to look at."""
        self._nvml: Any = (nvml or cards.load_nvml()) if gpus else None
        self._gpus = tuple(gpus)

    def read(self) -> dict[str, dict[str, float]]:
        """Card number -> its figures now: bytes, and shares between 0 and 1; {} where there is no card.

        The shares are of NVML's last sample period (a sixth of a second to a second): the time in which any
        kernel ran, and in which memory was read or written. `memory_own_bytes` is what this process and its
        descendants hold, where that is known. A card that does not answer is left out.
        """
        if self._nvml is None:
            return {}
        figures = {str(index): self._card(index) for index in self._gpus}
        return {index: card for index, card in figures.items() if card}

    def _card(self, index: int) -> dict[str, float]:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
            busy = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        except self._nvml.NVMLError:
            return {}
        return {
            "memory_used_bytes": memory.used,
            "memory_total_bytes": memory.total,
            "utilisation": busy.gpu / 100,
            "bandwidth_utilisation": busy.memory / 100,
            **self._own(handle),
        }

    def _own(self, handle: Any) -> dict[str, float]:
        """Unknown where NVML names none of our processes, or one without its memory.

        Inside a container the driver names processes as the host counts them, or gives each 0 bytes, by its
        version (NVIDIA/nvidia-docker issue 1483, NVIDIA/open-gpu-kernel-modules pull request 614).
        """
        try:
            holders = self._nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._nvml.NVMLError:
            return {}
        own = [holder.usedGpuMemory for holder in holders if _is_own(holder.pid)]
        return {"memory_own_bytes": sum(own)} if own and all(own) else {}


def _is_own(pid: int) -> bool:
    """Whether the process is this one or descends from it."""
    while pid > 1 and pid != os.getpid():
        pid = _parent(pid)
    return pid == os.getpid()


def _parent(pid: int) -> int:
    """The number of the parent; 0 where there is no such process."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(told.rpartition(")")[2].split()[1])  # behind the name, which may hold anything (proc(5))
