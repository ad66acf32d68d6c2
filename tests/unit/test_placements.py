"""The [[workers]] table: what it may say, and which processes `trilane up` makes of it."""

from pathlib import Path

import pytest

from jobs import gguf
from jobs.model_files import smollm2_path
from jobs.settings import MpsShare, Settings, SettingsError, WorkerPlacement, load
from trilane.stack import StackError, lane_workers

TABLE = """
[engine]
name = "vllm"

[[workers]]
lanes = ["hot"]
gpus = [0, 1]

[[workers]]
lanes = ["warm"]
gpus = [2]
mps = {}

[[workers]]
lanes = ["cold"]
gpus = [2]
engine = "llamacpp"
model_path = "small.gguf"
mps = { active_thread_percentage = 30, device_memory_gib = 20, low_priority = true }

[[workers]]
lanes = ["warm"]
gpus = [3]
"""


@pytest.fixture
def settings(config: Path) -> Settings:
    """The settings with the table above."""
    config.write_text(TABLE)
    return load()


def test_the_table_is_read(settings: Settings) -> None:
    assert settings.workers[2] == WorkerPlacement(
        lanes=("cold",),
        gpus=(2,),
        engine="llamacpp",
        model_path=Path("small.gguf"),
        mps=MpsShare(active_thread_percentage=30, device_memory_gib=20, low_priority=True),
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('lanes = ["tepid"]', r"setting workers\.0\.lanes: no lane 'tepid'; the lanes are hot, warm, cold"),
        ("lanes = []", r"setting workers\.0\.lanes: "),
        ("gpus = [0]", r"setting workers\.0\.lanes: "),
        ('lanes = ["hot"]\ngpus = [-1]', r"setting workers\.0\.gpus\.0: .*greater than or equal to 0"),
        ('lanes = ["hot"]\ngpus = [1, 1]', r"setting workers\.0\.gpus: one is named twice"),
        ('lanes = ["hot", "hot"]', r"setting workers\.0\.lanes: one is named twice"),
        ('lanes = ["hot"]\ncards = [0]', r"setting workers\.0\.cards: "),
        ('lanes = ["hot"]\nmps = {}', r"setting workers\.0\.mps: there is no card to share: name it in gpus"),
        (
            'lanes = ["hot"]\ngpus = [0]\nmps = { active_thread_percentage = 101 }',
            r"setting workers\.0\.mps\.active_thread_percentage: .*less than or equal to 100",
        ),
        (
            'lanes = ["hot"]\ngpus = [0]\nmps = { device_memory_gib = 0 }',
            r"setting workers\.0\.mps\.device_memory_gib: .*greater than 0",
        ),
        (
            'lanes = ["hot"]\ngpus = [0]\n[[workers]]\nlanes = ["cold"]\ngpus = [0, 1]\nmps = {}',
            r"setting workers\.1\.mps: card 0 is shared with workers\.0.*give both an mps",
        ),
        (
            'lanes = ["hot"]\nengine = "sim"\n[[workers]]\nlanes = ["hot"]',
            r"setting workers\.1: has the lanes and cards of workers\.0 but differs: make the two the same",
        ),
    ],
)
def test_what_cannot_be_placed_is_refused_with_its_place(config: Path, table: str, message: str) -> None:
    config.write_text(f"[[workers]]\n{table}\n")
    with pytest.raises(SettingsError, match=message):
        load()


def test_a_worker_started_by_hand_finds_its_entry(settings: Settings) -> None:
    assert settings.placement(["cold"], [2]) is settings.workers[2]
    assert settings.placement(["cold"], [1]) == WorkerPlacement(lanes=("cold",), gpus=(1,))


def test_each_entry_is_a_process_with_its_cards_and_its_engine(settings: Settings) -> None:
    entries = lane_workers.placements(settings)
    assert list(lane_workers.names(entries)) == ["worker-hot", "worker-warm", "worker-cold", "worker-warm-2"]
    assert [lane_workers.arguments(entry) for entry in entries] == [
        ["--lanes", "hot", "--gpu", "0,1", "--engine", "vllm"],
        ["--lanes", "warm", "--gpu", "2", "--engine", "vllm"],
        ["--lanes", "cold", "--gpu", "2", "--engine", "llamacpp"],
        ["--lanes", "warm", "--gpu", "3", "--engine", "vllm"],
    ]
    assert {lane_workers.niceness(settings, entry) for entry in entries} == {0}


def test_the_command_line_wins_over_the_table(settings: Settings) -> None:
    entries = lane_workers.placements(settings, [("hot", "warm"), ("cold",), ("cold",)], "sim")
    assert list(lane_workers.names(entries)) == ["worker-hot-warm", "worker-cold", "worker-cold-2"]
    assert lane_workers.arguments(entries[0]) == ["--lanes", "hot,warm", "--engine", "sim"]
    assert [lane_workers.niceness(settings, entry) for entry in entries] == [0, 19, 19]
    assert {entry.engine for entry in lane_workers.placements(settings, engine="sim")} == {"sim"}


def test_without_a_table_each_lane_has_a_process(config: Path) -> None:
    entries = lane_workers.placements(load())
    assert list(lane_workers.names(entries)) == ["worker-hot", "worker-warm", "worker-cold"]


def test_a_lane_that_does_not_exist_is_refused() -> None:
    with pytest.raises(StackError, match="no lane 'tepid'"):
        lane_workers.placements(load(), [("hot", "tepid")])


def test_only_lanes_of_the_local_model_are_cut_to_its_length(config: Path) -> None:
    context = gguf.context_length(gguf.read_metadata(smollm2_path()))
    settings = load(lane={"cold": {"limit": 1}})
    cut = {"max_model_len": context}
    everywhere = lane_workers.fitted_lanes(settings, lane_workers.placements(settings))
    assert everywhere["cold"] == cut | {"limit": 1}
    hot = lane_workers.placements(settings, [("hot", "warm")], "sim")
    assert lane_workers.fitted_lanes(settings, hot, "sim") == {"cold": {"limit": 1}}
    assert lane_workers.fitted_lanes(settings, hot) == {"cold": cut | {"limit": 1}}
