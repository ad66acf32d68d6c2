"""The setting `models`: what it may say, whose queues are whose, and which processes it makes."""

from pathlib import Path

import pytest

from jobs import broker
from jobs.settings import Settings, SettingsError, WorkerPlacement, load
from trilane.stack import lane_workers

TABLE = """
model = "First-7B"

[models."acme/Small-0.5B"]
model_path = "small.gguf"
lanes = ["cold", "warm"]

[models.Large]
"""
SMALL = "acme/Small-0.5B"


@pytest.fixture
def settings(config: Path) -> Settings:
    """The settings with the table above."""
    config.write_text(TABLE)
    return load()


def test_each_model_has_its_lanes_and_its_weights(settings: Settings) -> None:
    assert settings.served == ("First-7B", SMALL, "Large")
    assert [list(settings.lanes_of(name)) for name in settings.served] == [
        ["hot", "warm", "cold"],
        ["warm", "cold"],
        ["hot", "warm", "cold"],
    ]
    small = settings.of_model(SMALL)
    assert (small.model, small.engine.model_path) == (SMALL, Path("small.gguf"))
    assert settings.of_model("First-7B") is settings
    assert [settings.further(name) for name in (*settings.served, None)] == [None, SMALL, "Large", None]


def test_queues_are_of_one_lane_band_and_model(settings: Settings) -> None:
    queues = broker.all_queues(settings)
    assert len(queues) == len(set(queues)) == 3 * (3 + 2 + 3)
    assert {"hot.urgent", "warm.urgent.acme-small-0-5b", "hot.low.large"} <= set(queues)
    assert "hot.urgent.acme-small-0-5b" not in queues
    names = {queue.name for queue in broker.create_app(settings).conf.task_queues}
    assert names == {*queues, broker.CONTROL_QUEUE}


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[models.First-7B]", r"models\.First-7B: this is the setting model already"),
        (
            '[models.A]\nlanes = ["tepid"]',
            r"models\.A\.lanes: no lane 'tepid'; the lanes are hot, warm, cold",
        ),
        ("[models.A]\nlanes = []", r"models\.A\.lanes: "),
        ("[models.A]\ndevice = 1", r"models\.A\.device: "),
        (
            '[models."a.b"]\n[models."A-B"]',
            r"models\.A-B: its queues cannot be named, those of a\.b are called",
        ),
        ('[models."模型"]', r"models\.模型: its queues cannot be named, it has no letter"),
        (
            '[[workers]]\nlanes = ["hot"]\nmodel = "B"',
            r"workers\.0\.model: no model 'B'; served are First-7B",
        ),
        (
            '[[workers]]\nlanes = ["hot"]\nmodel = "A"\n[models.A]\nlanes = ["cold"]',
            r"workers\.0: of A\.lanes: no lane 'hot'; the lanes are cold",
        ),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_place(config: Path, table: str, message: str) -> None:
    config.write_text(f'model = "First-7B"\n{table}\n')
    with pytest.raises(SettingsError, match=f"setting {message}"):
        load()


def test_each_pair_of_a_lane_and_a_model_has_a_process(settings: Settings) -> None:
    entries = lane_workers.placements(settings, engine="sim")
    assert list(lane_workers.names(entries)) == [
        *("worker-hot", "worker-warm", "worker-cold"),
        *("worker-warm-acme-small-0-5b", "worker-cold-acme-small-0-5b"),
        *("worker-hot-large", "worker-warm-large", "worker-cold-large"),
    ]
    assert lane_workers.arguments(entries[3]) == ["--lanes", "warm", "--model", SMALL, "--engine", "sim"]
    assert lane_workers.complete(settings, entries)
    assert not lane_workers.complete(settings, entries[:-1])
    together = lane_workers.placements(settings, [("hot", "warm"), ("cold",)], "sim")
    assert [(entry.lanes, entry.model) for entry in together] == [
        (("hot", "warm"), None),
        (("cold",), None),
        (("warm",), SMALL),
        (("cold",), SMALL),
        (("hot", "warm"), "Large"),
        (("cold",), "Large"),
    ]


def test_workers_of_two_models_may_have_one_lane_and_card(config: Path) -> None:
    config.write_text(
        TABLE
        + '[[workers]]\nlanes = ["warm"]\ngpus = [0]\nengine = "vllm"\n'
        + f'[[workers]]\nlanes = ["warm"]\ngpus = [0]\nmodel = "{SMALL}"\nengine = "sim"\n'
    )
    settings = load()
    assert settings.placement(["warm"], [0], "First-7B") is settings.workers[0]
    assert settings.placement(["warm"], [0]) is settings.workers[0]
    assert settings.placement(["warm"], [0], SMALL) is settings.workers[1]
    other = WorkerPlacement(lanes=("warm",), gpus=(0,), model="Large")
    assert settings.placement(["warm"], [0], "Large") == other
