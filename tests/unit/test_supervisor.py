"""The supervisor: crashes are named and restarted, and no process is ever left behind."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.processes import is_gone
from tests.waiting import until
from trilane.stack import StackError, leftovers, ports
from trilane.stack.supervisor import Part, Supervisor

WAIT_S = 15.0

# A part that has a child of its own, as a worker might; it says both process ids and waits.
FAMILY = """
import os, subprocess, sys
grandchild = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("pids", os.getpid(), grandchild.pid, flush=True)
grandchild.wait()
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
time.sleep(600)
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def supervisor(tmp_path: Path, said: list[str]) -> Iterator[Supervisor]:
    made = Supervisor(tmp_path / "logs", said.append, backoff_s=0.05, backoff_cap_s=0.2, grace_s=1.0)
    yield made
    made.stop()


def log(tmp_path: Path, name: str) -> str:
    path = tmp_path / "logs" / f"{name}.log"
    return path.read_text() if path.exists() else ""


def has_spoken(tmp_path: Path, name: str) -> bool:
    return log(tmp_path, name) != ""


def test_a_part_is_ready_when_its_probe_says_so(
    supervisor: Supervisor, tmp_path: Path, said: list[str]
) -> None:
    part = Part("family", python(FAMILY), ready=lambda: "pids" in log(tmp_path, "family"))
    supervisor.start(part)
    assert "pids" in log(tmp_path, "family")
    assert said[0].startswith("family is ready after")
    assert list(supervisor.pids()) == ["family"]


def test_a_crashed_part_is_named_and_runs_again(
    supervisor: Supervisor, tmp_path: Path, said: list[str]
) -> None:
    supervisor.start(Part("family", python(FAMILY), ready=lambda: "pids" in log(tmp_path, "family")))
    first = supervisor.pids()["family"]
    os.kill(first, signal.SIGKILL)
    until(lambda: supervisor.pids().get("family", first) != first, WAIT_S)
    assert any("family ended by SIGKILL" in line and "family.log" in line for line in said)
    until(lambda: any("runs again" in line for line in said), WAIT_S)
    grandchild = int(log(tmp_path, "family").split()[2])
    until(lambda: is_gone(grandchild), WAIT_S)


def test_a_part_that_keeps_crashing_is_started_less_and_less_often(
    supervisor: Supervisor, tmp_path: Path, said: list[str]
) -> None:
    broken = tmp_path / "broken"
    code = "import os, signal, sys; sys.exit(3) if os.path.exists(sys.argv[1]) else signal.pause()"
    supervisor.start(Part("flaky", [*python(code), str(broken)]))
    broken.touch()
    os.kill(supervisor.pids()["flaky"], signal.SIGTERM)
    until(lambda: sum("ended with exit code 3" in line for line in said) >= 3, WAIT_S)
    delays = [line.split(" in ")[1].split(" s;")[0] for line in said if " ended " in line]
    assert delays[:4] == ["0.05", "0.1", "0.2", "0.2"]


def test_a_part_that_ends_before_it_is_ready_fails_the_start_with_its_log(supervisor: Supervisor) -> None:
    broken = Part("broken", python("raise SystemExit('no model here')"), ready=lambda: False)
    with pytest.raises(StackError, match=r"(?s)broken ended before it was ready.*no model here"):
        supervisor.start(broken)


def test_a_part_that_is_never_ready_fails_the_start(supervisor: Supervisor) -> None:
    with pytest.raises(StackError, match="slow was not ready after"):
        supervisor.start(Part("slow", python(FAMILY), ready=lambda: False, start_timeout_s=0.2))


def test_stop_ends_parts_their_children_and_those_that_ignore_the_signal(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start(
        Part("family", python(FAMILY), ready=lambda: "pids" in log(tmp_path, "family")),
        Part("stubborn", python(STUBBORN), ready=lambda: "deaf" in log(tmp_path, "stubborn")),
    )
    pids = [*supervisor.pids().values(), int(log(tmp_path, "family").split()[2])]
    supervisor.stop()
    assert supervisor.pids() == {}
    for pid in pids:
        until(partial(is_gone, pid), WAIT_S)


def test_what_was_started_last_is_stopped_first(supervisor: Supervisor, tmp_path: Path) -> None:
    last_words = """
import pathlib, signal, sys
def leave(*_):
    with open(sys.argv[1], "a") as file: file.write(sys.argv[2])
    sys.exit()
signal.signal(signal.SIGTERM, leave)
print("set", flush=True)
signal.pause()
"""
    order = tmp_path / "order"
    for name in ("one", "two"):
        argv = [*python(last_words), str(order), name]
        supervisor.start(Part(name, argv, ready=partial(has_spoken, tmp_path, name)))
    supervisor.stop()
    assert order.read_text() == "twoone"


def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    parent = textwrap.dedent(f"""
        import signal
        from pathlib import Path
        from trilane.stack.supervisor import Part, Supervisor
        supervisor = Supervisor(Path({str(tmp_path / "logs")!r}), print)
        supervisor.start(Part("stubborn", {python(STUBBORN)!r}), Part("other", {python(STUBBORN)!r}))
        print(*supervisor.pids().values(), flush=True)
        signal.pause()
    """)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        lines = iter(process.stdout.readline, "") if process.stdout else iter(())
        pids = next(line for line in lines if line.split()[0].isdigit()).split()
        assert len(pids) == 2
        process.kill()
        for pid in pids:
            until(partial(is_gone, int(pid)), WAIT_S)


def test_a_part_runs_at_its_niceness(supervisor: Supervisor, tmp_path: Path) -> None:
    code = "import os; print(os.nice(0), flush=True); import time; time.sleep(600)"
    supervisor.start(Part("nice", python(code), niceness=19, ready=lambda: "\n" in log(tmp_path, "nice")))
    assert log(tmp_path, "nice") == "19\n"
    pid = supervisor.pids()["nice"]
    assert os.getpgid(pid) == pid  # So that Ctrl-C in a terminal does not reach it,
    assert os.getsid(pid) == os.getsid(0)  # and so that its niceness counts beside the other parts'.


def test_a_busy_port_that_was_asked_for_is_refused_and_a_busy_default_replaced() -> None:
    with socket.socket() as busy:
        busy.bind((ports.HOST, 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(StackError, match=rf"port {port} is in use.*--api-port"):
            ports.choose(port, 8080, "--api-port")
        replaced = ports.choose(None, port, "--api-port")
    assert replaced != port
    assert ports.is_free(replaced)
    assert ports.choose(None, replaced, "--api-port") == replaced


def test_a_leftover_server_is_ended_and_a_stranger_with_its_number_is_not(tmp_path: Path) -> None:
    pid_file = tmp_path / "server.pid"
    with subprocess.Popen([*python("import time; time.sleep(600)"), str(tmp_path)]) as process:
        pid_file.write_text(f"{process.pid}\n")
        leftovers.end(pid_file, marker="/another/directory")
        assert process.poll() is None
        assert not pid_file.exists()
        pid_file.write_text(f"{process.pid}\n")
        leftovers.end(pid_file, marker=str(tmp_path))
        assert process.wait(timeout=5) == -signal.SIGTERM
