"""Pinning: the variables are set in time and rightly, or the worker does not start and says why."""

from dataclasses import dataclass, replace

import pytest

from jobs.domain.lanes import LANES, LanePolicy
from jobs.domain.policies import EnginePolicy
from workers import pinning
from workers.pinning import PinningError

UUIDS = ("GPU-8932f937-d72c", "GPU-1b2c3d4e-0001", "GPU-1b2c9999-0002")


@dataclass
class FakeNvml:
    """NVML on a machine with cards of these UUIDs."""

    uuids: tuple[str, ...] = UUIDS

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802 - NVML's own name
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802 - as above
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802 - as above
        return self.uuids[handle]


def lane(cards: int) -> LanePolicy:
    """The cold lane, its engine on so many cards."""
    return replace(LANES["cold"], engine=EnginePolicy(tensor_parallel=cards))


def pin(
    *gpus: int, needed: int | None = None, imported: tuple[str, ...] = (), **environ: str
) -> dict[str, str]:
    """The environment after pinning on a machine with three cards."""
    pinning.pin(
        gpus,
        lane(needed or len(gpus) or 1),
        environ=environ,
        imported=imported,
        nvml=FakeNvml(),
    )
    return environ


@pytest.mark.parametrize("gpus", [(1,), (2, 0)])
def test_the_cards_are_set_in_their_order_counted_along_the_bus(gpus: tuple[int, ...]) -> None:
    expected = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus)), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert pin(*gpus) == expected


@pytest.mark.parametrize("given", ["1", " 1 ", "GPU-1b2c3d4e", UUIDS[1]])
def test_what_was_set_rightly_before_is_no_obstacle(given: str) -> None:
    environ = pin(1, CUDA_VISIBLE_DEVICES=given, CUDA_DEVICE_ORDER="PCI_BUS_ID")
    assert environ["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("gpus", "options", "message"),
    [
        (
            (0,),
            {"CUDA_VISIBLE_DEVICES": "1"},
            "--gpu 0: CUDA_VISIBLE_DEVICES is already set to '1'.*unset it",
        ),
        ((0, 1), {"CUDA_VISIBLE_DEVICES": "1,0"}, "already set to '1,0'"),
        ((0,), {"CUDA_VISIBLE_DEVICES": ""}, "already set to ''"),
        ((0,), {"CUDA_VISIBLE_DEVICES": "-1"}, "already set to '-1'"),
        ((1,), {"CUDA_VISIBLE_DEVICES": "GPU-1b2c"}, "already set to 'GPU-1b2c'"),  # two cards begin so
        ((0,), {"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "CUDA_DEVICE_ORDER is FASTEST_FIRST.*unset it"),
        ((0,), {"imported": ("torch",)}, "torch is already imported.*in a process of its own"),
        ((0,), {"imported": ("vllm",)}, "vllm is already imported"),
        ((1, 1), {}, "--gpu 1,1: a card is named twice"),
        ((-1,), {}, "-1 is no card's number"),
        ((), {}, "no card is named"),
        ((0, 3), {}, "there is no card 3: this machine has 3"),
        ((0, 1), {"needed": 1}, "these are 2 cards, and the engine of lane cold runs on 1.*tensor_parallel"),
        ((0,), {"needed": 2}, "these are 1 cards, and the engine of lane cold runs on 2"),
    ],
)
def test_what_is_wrong_is_refused_with_a_remedy(
    gpus: tuple[int, ...], options: dict[str, str], message: str
) -> None:
    with pytest.raises(PinningError, match=message):
        pin(*gpus, **options)  # type: ignore[arg-type]  # a table of mixed options


def test_a_refusal_leaves_the_environment_as_it_was() -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "2"}
    with pytest.raises(PinningError):
        pinning.pin([0], lane(1), environ=environ, imported=(), nvml=FakeNvml())
    assert environ == {"CUDA_VISIBLE_DEVICES": "2"}


def test_where_nvml_finds_no_card_any_number_may_be_meant() -> None:
    environ: dict[str, str] = {}
    pinning.pin([7], lane(1), environ=environ, imported=(), nvml=FakeNvml(()))
    assert environ["CUDA_VISIBLE_DEVICES"] == "7"


@pytest.mark.parametrize(
    ("given", "numbers"), [(None, ()), ("", ()), ("2,0", (2, 0)), ("GPU-1b2c9999,0", (2, 0)), ("MIG-1", ())]
)
def test_the_pinned_cards_are_known_by_number(given: str | None, numbers: tuple[int, ...]) -> None:
    environ = {} if given is None else {"CUDA_VISIBLE_DEVICES": given}
    assert pinning.pinned(environ=environ, nvml=FakeNvml()) == numbers
