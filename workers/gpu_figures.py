"""What a worker's cards do now, by NVML: memory used, and the busy shares of cores and memory bus."""

from collections.abc import Sequence
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
        kernel ran, and in which memory was read or written. A card that does not answer is left out.
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
        }
