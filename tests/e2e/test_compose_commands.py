"""The composed services' commands and health checks make a stack that works; here they run as processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from tests.composed import FILES, ROOT, SECRET, compose, of_trilane
from tests.conftest import Servers
from tests.waiting import until
from trilane.stack import ports, redis

START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


class Services:
    """Runs services as processes of this machine: their host names, ports and paths are replaced."""

    def __init__(self, directory: Path, servers: Servers) -> None:
        servers.admin("CREATE DATABASE composed")
        self.api, self.redis_port, flower_port = f"127.0.0.1:{ports.free()}", ports.free(), ports.free()
        places = {
            f"postgresql://trilane:{SECRET}@postgres:5432/trilane": servers.database_url.rpartition("/")[0]
            + "/composed",
            "redis:6379": f"127.0.0.1:{self.redis_port}",
            "127.0.0.1:8080": self.api,
            "127.0.0.1:5555": f"127.0.0.1:{flower_port}",
            '"5555"': f'"{flower_port}"',
            "/var/lib/trilane": str(directory),
        }
        done = compose(directory, FILES[0])
        assert done.returncode == 0, done.stderr
        text = done.stdout
        for composed, here in places.items():
            assert composed in text, composed
            text = text.replace(composed, here)
        model: dict[str, Any] = json.loads(text)
        self.all = of_trilane(model["services"])
        self._directory, self._redis_conf = directory, model["configs"]["redis"]["content"]

    def environment(self, name: str) -> dict[str, str]:
        """A service's environment, and what a process needs here."""
        port = self.api.rpartition(":")[2]
        here = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "TRILANE_API__PORT": port}
        return {**here, **self.all[name]["environment"]}

    def argv(self, words: Sequence[str]) -> list[str]:
        """A command of the image as it is called here."""
        programs = {
            "trilane": [sys.executable, "-m", "trilane"],
            "healthy": [sys.executable, str(ROOT / "deploy/healthy.py")],
        }
        return [*programs[words[0]], *words[1:]]

    def run(self, name: str, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command in a service's environment, as `docker compose exec` does."""
        return subprocess.run(
            self.argv(words),
            env=self.environment(name),
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
        )

    def start_redis(self) -> "subprocess.Popen[bytes]":
        """Start the server that the tests have, with the composed configuration."""
        conf = self._directory / "valkey.conf"
        here = f"bind 127.0.0.1\nport {self.redis_port}\ndir {self._directory}\n"
        conf.write_text(self._redis_conf + here)
        return self._popen([str(redis._program()), str(conf)], {}, "redis")

    def start(self, name: str) -> "subprocess.Popen[bytes]":
        """Start a service."""
        return self._popen(self.argv(self.all[name]["command"]), self.environment(name), name)

    def healthy(self, name: str) -> bool:
        """What the service's health check says."""
        _, *words = self.all[name]["healthcheck"]["test"]
        return self.run(name, *words).returncode == 0

    def _popen(self, argv: list[str], env: dict[str, str], name: str) -> "subprocess.Popen[bytes]":
        with (self._directory / f"{name}.log").open("wb") as log:
            return subprocess.Popen(argv, env=env, cwd=self._directory, stdout=log, stderr=subprocess.STDOUT)


def test_composed_services_answer_a_job(servers: Servers, tmp_path: Path) -> None:
    services = Services(tmp_path, servers)
    with ExitStack() as stack:
        redis_server = services.start_redis()
        stack.callback(redis_server.wait)
        stack.callback(redis_server.kill)
        migrated = services.run("migrate", *services.all["migrate"]["command"])
        assert migrated.returncode == 0, migrated.stderr
        running = {name: services.start(name) for name in services.all if name != "migrate"}
        for process in running.values():
            stack.callback(process.kill)
        for name, process in running.items():
            until(partial(services.healthy, name), START_TIMEOUT_S, f"a healthy {name}")
            assert process.poll() is None, name

        made = services.run("api", "trilane", "keys", "create", "--tenant", "acme", "--json")
        assert made.returncode == 0, made.stderr
        where = ("--api", f"http://{services.api}", "--key", json.loads(made.stdout)["api_key"])
        asked = services.run("api", "trilane", "submit", "--prompt", "Hello!", "--wait", "--json", *where)
        assert json.loads(asked.stdout)["status"] == "succeeded", asked.stderr

        for process in running.values():
            process.terminate()
        codes = {name: process.wait(STOP_TIMEOUT_S) for name, process in running.items()}
        # uvicorn ends in order and then by the signal itself.
        assert codes == dict.fromkeys(running, 0) | {"api": -signal.SIGTERM}
        assert not any(services.healthy(name) for name in ("api", "control"))
