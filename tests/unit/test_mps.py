"""CUDA MPS: one daemon however many workers join, with the variables that bound each of them."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobs.settings import MpsShare
from workers import mps
from workers.mps import MpsError

# Answers commands only after it was started, as the real one does, and writes down how it was called.
FAKE = f"""#!{sys.executable}
import json, os, sys
pipes = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
running = os.path.join(pipes, "nvidia-cuda-mps-control.pid")
cuda = {{name: value for name, value in os.environ.items() if name.startswith("CUDA_")}}
said = "" if "-d" in sys.argv else sys.stdin.read()
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([sys.argv[1:], said, cuda]) + "\\n")
if "-d" in sys.argv:
    if os.environ.get("BROKEN"):
        sys.exit("An instance of this daemon cannot be started")
    open(running, "w").close()
elif not os.path.exists(running):
    sys.exit(1)
"""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """An environment whose PATH begins with the fake control program."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = tmp_path / "bin" / mps.CONTROL
    program.parent.mkdir()
    program.write_text(FAKE)
    program.chmod(0o755)
    yield {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "CUDA_VISIBLE_DEVICES": "1",
    }


def calls(environ: dict[str, str]) -> list[list[Any]]:
    """Each call's arguments, input and CUDA variables."""
    return [json.loads(line) for line in Path(environ["CALLS"]).read_text().splitlines()]


def test_the_first_to_join_starts_the_daemon_and_the_others_find_it(
    environ: dict[str, str], tmp_path: Path
) -> None:
    first, second = dict(environ), dict(environ)
    mps.join(MpsShare(), 1, first)
    mps.join(MpsShare(low_priority=True), 1, second)
    own = tmp_path / f"trilane-{os.getuid()}"
    places = {"CUDA_MPS_PIPE_DIRECTORY": str(own / "mps"), "CUDA_MPS_LOG_DIRECTORY": str(own / "mps-log")}
    daemon = {**places, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # no CUDA_VISIBLE_DEVICES, nobody's bounds
    ask: list[object] = [[], "get_server_list\n", daemon]
    assert calls(environ) == [ask, [["-d"], "", daemon], ask, ask]
    assert first == environ | places
    assert second == environ | places | {"CUDA_MPS_CLIENT_PRIORITY": "1"}
    assert stat.S_IMODE(own.stat().st_mode) == 0o700


def test_many_that_join_at_once_start_one_daemon(environ: dict[str, str], tmp_path: Path) -> None:
    code = "from jobs.settings import MpsShare; from workers import mps; mps.join(MpsShare(), 1)"
    env = {**os.environ, **environ, "TMPDIR": str(tmp_path)}
    joining = [subprocess.Popen([sys.executable, "-c", code], env=env) for _ in range(3)]
    assert [process.wait(60) for process in joining] == [0, 0, 0]
    assert [arguments for arguments, _, _ in calls(environ)].count(["-d"]) == 1


@pytest.mark.parametrize(
    ("share", "cards", "variables"),
    [
        ({}, 1, {}),
        ({"low_priority": True}, 1, {"CUDA_MPS_CLIENT_PRIORITY": "1"}),
        ({"active_thread_percentage": 30}, 1, {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30"}),
        ({"device_memory_gib": 7.5}, 2, {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=7680M,1=7680M"}),
    ],
)
def test_a_share_becomes_variables(share: dict[str, Any], cards: int, variables: dict[str, str]) -> None:
    assert mps.bounds(MpsShare(**share), cards) == variables


def test_the_operators_own_daemon_is_used(environ: dict[str, str], tmp_path: Path) -> None:
    pipes = tmp_path / "theirs"
    pipes.mkdir()
    (pipes / "nvidia-cuda-mps-control.pid").touch()
    environ["CUDA_MPS_PIPE_DIRECTORY"] = str(pipes)
    mps.join(MpsShare(), 1, environ)
    assert environ["CUDA_MPS_PIPE_DIRECTORY"] == str(pipes)
    assert [arguments for arguments, _, _ in calls(environ)] == [[]]


def test_without_the_program_the_remedy_is_told(environ: dict[str, str]) -> None:
    with pytest.raises(MpsError, match=r"not on the PATH: install.*or take mps out"):
        mps.join(MpsShare(), 1, environ | {"PATH": "/nowhere"})


def test_a_daemon_that_does_not_start_is_told_with_what_it_said(environ: dict[str, str]) -> None:
    with pytest.raises(MpsError, match=r"did not start a daemon \(An instance .* cannot be started\)"):
        mps.join(MpsShare(), 1, environ | {"BROKEN": "1"})
