"""Binds this process to its cards before anything that uses CUDA is imported, or refuses to.

CUDA reads its variables once, when it is initialised, and counts the fastest card first unless it is told to
count as the PCI bus does (CUDA programming guide, environment variables). So a variable that comes too late
or counts otherwise puts a lane on another lane's card, where nobody sees it.
"""

import os
import sys
from collections.abc import Container, Mapping, MutableMapping, Sequence
from typing import Any

import structlog

from jobs.domain.lanes import LanePolicy
from workers.planning import cards

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
BUS_ORDER = "PCI_BUS_ID"
_USES_CUDA = ("torch", "vllm")

log = structlog.get_logger()


class PinningError(ValueError):
    """The worker cannot be bound to its cards; the message says why, and the remedy."""


def pin(
    gpus: Sequence[int],
    policy: LanePolicy,
    *,
    environ: MutableMapping[str, str] = os.environ,
    imported: Container[str] = sys.modules,
    nvml: Any = None,
) -> None:
    """Let this process see the cards `gpus` alone, by their numbers in nvidia-smi and in this order.

    `policy` is the lane's whose engine runs on them. `nvml` stands for the module `pynvml`, opened; None
    loads it. Raises `PinningError`; the environment is then as it was.
    """
    nvml = nvml or cards.load_nvml()
    problem = (
        _wrong_numbers(gpus, nvml)
        or _wrong_count(gpus, policy)
        or _too_late(imported)
        or _set_otherwise(gpus, environ, nvml)
    )
    if problem:
        raise PinningError(f"--gpu {','.join(map(str, gpus))}: {problem}")
    environ[ORDER] = BUS_ORDER
    environ[VISIBLE] = ",".join(map(str, gpus))
    log.info("cards.pinned", gpus=list(gpus), lane=policy.name)


def pinned(*, environ: Mapping[str, str] = os.environ, nvml: Any = None) -> tuple[int, ...]:
    """The numbers of the cards that this process was bound to, here or from outside; () where it was not."""
    given = environ.get(VISIBLE, "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    if not all(name.isdigit() for name in names):
        uuids = _uuids(nvml or cards.load_nvml())
        names = [str(number) for name in names for number in _numbers(name, uuids)]
    return tuple(map(int, names))


def _wrong_numbers(gpus: Sequence[int], nvml: Any) -> str | None:
    if not gpus:
        return "no card is named: give its number"
    if min(gpus) < 0:
        return f"{min(gpus)} is no card's number: they start at 0"
    if len(set(gpus)) < len(gpus):
        return "a card is named twice: name each once"
    there = nvml.nvmlDeviceGetCount() if nvml else 0
    if there and max(gpus) >= there:
        return f"there is no card {max(gpus)}: this machine has {there}, numbered from 0 (see nvidia-smi -L)"
    return None


def _wrong_count(gpus: Sequence[int], policy: LanePolicy) -> str | None:
    needed = policy.engine.tensor_parallel
    if len(gpus) == needed:
        return None
    return (
        f"these are {len(gpus)} cards, and the engine of lane {policy.name} runs on {needed}: name as many,"
        f" or set lane.{policy.name}.engine.tensor_parallel"
    )


def _too_late(imported: Container[str]) -> str | None:
    early = [name for name in _USES_CUDA if name in imported]
    if not early:
        return None
    return (
        f"{early[0]} is already imported and may have looked for cards: start the worker with `trilane"
        " worker`, in a process of its own"
    )


def _set_otherwise(gpus: Sequence[int], environ: Mapping[str, str], nvml: Any) -> str | None:
    order = environ.get(ORDER, BUS_ORDER)
    if order != BUS_ORDER:
        return f"{ORDER} is {order}, which numbers the cards in another way: unset it"
    given = environ.get(VISIBLE)
    if given is None or pinned(environ=environ, nvml=nvml) == tuple(gpus):
        return None
    return f"{VISIBLE} is already set to {given!r}, which names other cards: unset it, or give no --gpu"


def _uuids(nvml: Any) -> list[str]:
    count = nvml.nvmlDeviceGetCount() if nvml else 0
    found = (nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(number)) for number in range(count))
    return [uuid.decode() if isinstance(uuid, bytes) else uuid for uuid in found]


def _numbers(name: str, uuids: Sequence[str]) -> list[int]:
    """The number of the card with this number or this beginning of a UUID, which CUDA takes too."""
    if name.isdigit():
        return [int(name)]
    return [number for number, uuid in enumerate(uuids) if uuid.startswith(name)]
