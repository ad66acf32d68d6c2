"""The parts that `trilane up` starts, before any is started."""

from pathlib import Path

import pytest

from jobs.store.engine import open_engine
from trilane.stack.local import Options, _Starting

SHORT_S, LONG_S = 180.0, 1_800.0
CARD = """
[[workers]]
lanes = ["hot"]
gpus = [0]

[[workers]]
lanes = ["warm", "cold"]
"""


@pytest.mark.parametrize(
    ("table", "engine", "long"),
    [
        ("", "llamacpp", set()),
        ("", "vllm", {"worker-hot", "worker-warm", "worker-cold", "api"}),
        (CARD, "sim", {"worker-hot", "api"}),
    ],
)
def test_what_waits_for_a_large_model_has_longer_to_start(
    config: Path, tmp_path: Path, table: str, engine: str, long: set[str]
) -> None:
    config.write_text(table)
    options = Options(engine=engine, api_port=0, flower_port=0, embedded=True)
    database = open_engine("postgresql://nowhere/none")  # nothing asks it
    parts = _Starting(options, tmp_path, lambda line: None)._parts(database, "password")
    limits = {part.name: part.start_timeout_s for part in parts}
    assert {name for name, limit_s in limits.items() if limit_s == LONG_S} == long
    assert {limits[name] for name in limits.keys() - long} == {SHORT_S}
