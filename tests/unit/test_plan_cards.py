"""The cards: given by hand, found through NVML, and what they do now."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.fake_nvml import FakeNvml
from workers.gpu_figures import GpuFigures
from workers.planning import cards
from workers.planning.cards import KINDS, MIB, Card, CardKind, UnknownCard

A100 = ("NVIDIA A100-SXM4-80GB", 81_920, (8, 0), 1_593, 5_120)
T4 = (b"Tesla T4", 15_360, (7, 5), 5_001, 256)


def test_given_by_hand_and_in_order_of_their_numbers() -> None:
    given = cards.parse(["T4:8", "a100-80g:0-1"])
    assert given == [Card(0, KINDS["A100-80G"]), Card(1, KINDS["A100-80G"]), Card(8, KINDS["T4"])]
    assert given[0].title == "GPU 0 (A100-80G)"
    assert given[2].memory_bytes == 15_360 * MIB


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("A100", "A100-80G:0"),
        ("A100-80G", "a card and its number"),
        ("A100-80G:x", "a card and its number"),
        (":3", "a card and its number"),
        ("A100:0", "known are T4, A100-40G"),
    ],
)
def test_what_is_no_card_is_told_with_what_is(spec: str, told: str) -> None:
    with pytest.raises(UnknownCard, match=told):
        cards.parse([spec])


@pytest.mark.parametrize("number", [0, 3])
def test_a_number_belongs_to_one_card(number: int) -> None:
    with pytest.raises(UnknownCard, match=f"GPU {number} is given twice"):
        cards.parse([f"T4:{number}", f"L4:{number}"])


def test_found_through_nvml_as_the_data_sheets_say() -> None:
    """Bandwidth is computed from clock and bus: 2,039 GB/s and 320 GB/s are what the vendor prints."""
    assert cards.found(FakeNvml([A100, T4])) == [
        Card(0, CardKind("A100-SXM4-80GB", 81_920, 80, 2_039)),
        Card(1, CardKind("T4", 15_360, 75, 320)),
    ]


def test_capabilities_are_told_as_the_vendor_counts() -> None:
    assert [cards.capability_title(capability) for capability in (75, 89, 100)] == ["7.5", "8.9", "10.0"]


def test_figures_are_bytes_and_shares() -> None:
    figures = GpuFigures([1], FakeNvml([A100, T4])).read()
    assert figures == {
        "1": {
            "memory_used_bytes": 1_024 * MIB,
            "memory_total_bytes": 15_360 * MIB,
            "utilisation": 0.75,
            "bandwidth_utilisation": 0.40,
        }
    }


@pytest.fixture
def descendant() -> Iterator[int]:
    """A process that a child of this one started, as vLLM's core process starts one for each card."""
    code = "import subprocess as s; p = s.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, process_group=0
    ) as child:
        yield int(child.stdout.readline()) if child.stdout else 0
        os.killpg(child.pid, signal.SIGKILL)


def own_bytes(processes: dict[int, int | None] | None) -> float | None:
    figures = GpuFigures([0], FakeNvml([A100], processes=processes)).read()
    return figures["0"].get("memory_own_bytes")


def test_own_memory_is_that_of_the_process_and_its_descendants(descendant: int) -> None:
    assert own_bytes({os.getpid(): 3 * MIB, os.getppid(): 50 * MIB, descendant: 40 * MIB}) == 43 * MIB
    assert own_bytes({descendant: 40 * MIB, 1: 50 * MIB}) == 40 * MIB


@pytest.mark.parametrize(
    "processes",
    [None, {}, {os.getppid(): 5 * MIB}, {2**22 + 1: 5 * MIB}, {os.getpid(): None}, {os.getpid(): 0}],
    ids=["refused", "nobody", "a stranger", "the host's numbers", "without memory", "without its figure"],
)
def test_own_memory_that_is_not_told_is_unknown(processes: dict[int, int | None] | None) -> None:
    assert own_bytes(processes) is None


def test_own_memory_is_unknown_where_one_process_s_is(descendant: int) -> None:
    assert own_bytes({os.getpid(): 3 * MIB, descendant: None}) is None


def test_a_card_that_does_not_answer_has_no_figures() -> None:
    assert list(GpuFigures([0, 1], FakeNvml([A100, T4], lost={0})).read()) == ["1"]


def test_no_cards_no_figures() -> None:
    assert GpuFigures([], FakeNvml([A100])).read() == {}
