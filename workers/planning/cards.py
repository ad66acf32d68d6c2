"""The cards: those found through NVML, or named by hand from a table of known ones."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 1 << 20


class UnknownCard(ValueError):
    """A card given by hand that is in no table, or whose number is no number; the message lists what is."""


@dataclass(frozen=True, slots=True)
class CardKind:
    """A kind of card. `capability` is the compute capability times ten, as vLLM compares it: 75, 80, 89."""

    name: str
    memory_mib: int
    capability: int
    bandwidth_gb_s: int


@dataclass(frozen=True, slots=True)
class Card:
    """One card; `index` is its number on the PCI bus, as NVML and nvidia-smi count."""

    index: int
    kind: CardKind

    @property
    def memory_bytes(self) -> int:
        """All of its memory."""
        return self.kind.memory_mib * MIB

    @property
    def title(self) -> str:
        """`GPU 0 (A100-80G)`."""
        return f"GPU {self.index} ({self.kind.name})"


# Memory as the driver reports it (nvidia-smi, ECC on), bandwidth by the vendor's data sheets.
KINDS: Mapping[str, CardKind] = {
    kind.name: kind
    for kind in (
        CardKind("T4", 15_360, 75, 320),
        CardKind("A100-40G", 40_960, 80, 1_555),
        CardKind("A100-80G", 81_920, 80, 2_039),
        CardKind("A30", 24_576, 80, 933),
        CardKind("A10", 23_028, 86, 600),
        CardKind("A40", 46_068, 86, 696),
        CardKind("L4", 23_034, 89, 300),
        CardKind("L40S", 46_068, 89, 864),
        CardKind("RTX4090", 24_564, 89, 1_008),
        CardKind("H100-80G", 81_559, 90, 3_352),
        CardKind("H200-141G", 143_771, 90, 4_800),
        CardKind("B200", 183_359, 100, 8_000),
    )
}


def capability_title(capability: int) -> str:
    """`8.9` for 89."""
    return f"{capability // 10}.{capability % 10}"


def parse(specs: Sequence[str]) -> list[Card]:
    """Cards given by hand: `A100-80G:0`, or `A100-80G:0-7` for eight of them. Raises `UnknownCard`."""
    cards = [card for spec in specs for card in _parse(spec)]
    indexes = [card.index for card in cards]
    for index in indexes:
        if indexes.count(index) > 1:
            raise UnknownCard(f"--gpu: GPU {index} is given twice")
    return sorted(cards, key=lambda card: card.index)


def _parse(spec: str) -> list[Card]:
    name, _, numbers = spec.rpartition(":")
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", numbers)
    if not name or not match:
        raise UnknownCard(f"--gpu {spec}: give a card and its number, as in A100-80G:0 or A100-80G:0-7")
    kind = next((kind for key, kind in KINDS.items() if key.lower() == name.lower()), None)
    if kind is None:
        raise UnknownCard(f"--gpu {spec}: no such card is known; known are {', '.join(KINDS)}")
    first, last = int(match[1]), int(match[2] or match[1])
    return [Card(index, kind) for index in range(first, last + 1)]


def load_nvml() -> Any:
    """NVML, opened; None where there is no driver, and so no card."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


def found(nvml: Any = None) -> list[Card]:
    """The cards of this machine in the order of their numbers; an empty list where there is none.

    `nvml` stands for the module `pynvml`, opened; None loads it.
    """
    nvml = nvml or load_nvml()
    if nvml is None:
        return []
    return [Card(index, _kind(nvml, index)) for index in range(nvml.nvmlDeviceGetCount())]


def _kind(nvml: Any, index: int) -> CardKind:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    clock_mhz = nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM)
    return CardKind(
        _name(nvml.nvmlDeviceGetName(handle)),
        nvml.nvmlDeviceGetMemoryInfo(handle).total // MIB,
        10 * major + minor,
        # Both edges of the clock carry the whole bus: an A100-80G's 1,593 MHz and 5,120 bits are 2,039 GB/s.
        2 * clock_mhz * nvml.nvmlDeviceGetMemoryBusWidth(handle) // 8_000,
    )


def _name(reported: str | bytes) -> str:
    name = reported.decode() if isinstance(reported, bytes) else reported
    return name.removeprefix("NVIDIA ").removeprefix("Tesla ")
