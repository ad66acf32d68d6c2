"""Composes the parts into one running stack on loopback, its data kept in one directory."""

import fcntl
import json
import signal
import sys
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from pydantic import SecretStr
from sqlalchemy import Engine

from jobs import secrets as job_secrets
from jobs import settings as settings_module
from jobs.settings import Settings, WorkerPlacement
from jobs.store import tenants, workers
from jobs.store.engine import open_engine
from migrations import commands as migrations
from producer.client import DEFAULT_TENANT
from trilane.stack import StackError, lane_workers, ports, secrets
from trilane.stack.postgres import Postgres
from trilane.stack.redis import Redis
from trilane.stack.supervisor import Part, Supervisor

TENANT = DEFAULT_TENANT  # so that the API and Python on this machine see the same jobs
FLOWER_USER = "trilane"
FLOWER_PORT = 5555
_SIGNING_FILE = "signing_secret"
DESCRIPTION = "stack.json"  # the file in the data directory that tells where a running stack listens
_STOP_MARGIN_S = 10.0  # what a worker may take beyond its own grace time


@dataclass(frozen=True)
class Options:
    """How a local stack is set up. A port that is None takes the default or a free one; 0 any free one."""

    data_dir: Path = Path(".trilane")
    engine: str | None = None  # of all workers; None: as settings say
    lanes: Sequence[Sequence[str]] | None = None  # a worker process for each entry; None: as settings say
    webhook_allow: Sequence[str] = ()  # networks (CIDR) that webhooks may reach though they are private
    api_port: int | None = None
    flower_port: int | None = None
    ready_file: Path | None = None
    embedded: bool = False  # start both servers, whatever the settings name
    env: Mapping[str, str] = field(default_factory=dict)  # further TRILANE_ settings of every part


@dataclass(frozen=True)
class Stack:
    """A stack that is up: where it listens and what opens it."""

    api: str
    api_key: str = field(repr=False)
    flower: str
    flower_user: str
    flower_password: str = field(repr=False)
    signing_secret: Path  # the file with the secret that webhooks are signed with
    settings: Settings  # for `producer` calls in this process
    pids: Callable[[], dict[str, int]]

    def describe(self) -> str:
        """The JSON text of `stack.json` and of the ready file."""
        fields = ("api", "api_key", "flower", "flower_user", "flower_password")
        described: dict[str, object] = {name: getattr(self, name) for name in fields}
        described["database_url"] = self.settings.database_url
        described["redis_url"] = self.settings.redis_url
        described["pids"] = self.pids()
        return json.dumps(described, indent=2) + "\n"


@contextmanager
def running(options: Options, say: Callable[[str], None] = lambda line: None) -> Iterator[Stack]:
    """Start everything, give the stack once it is ready, and leave no process behind.

    Raises `StackError` or `SettingsError` with a remedy where it cannot start.
    """
    data = options.data_dir.absolute()
    files = [data / DESCRIPTION, *([options.ready_file] if options.ready_file else [])]
    with _locked(data):
        starting = _Starting(options, data, say)
        try:
            _remove(files)
            stack = starting.start()
            starting.describe = partial(_describe, stack, files)
            starting.describe()
            yield stack
        finally:
            say(f"stopping: jobs that run have {starting.job_grace_s:g} s to end")
            starting.supervisor.stop()
            _remove(files)  # Only now: a part that just restarted may have written them again.


@contextmanager
def interruptible() -> Iterator[None]:
    """Here the first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt; later ones are ignored."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Starting:
    """The steps from settings to a ready stack."""

    def __init__(self, options: Options, data: Path, say: Callable[[str], None]) -> None:
        self._options, self._data, self._say = options, data, say
        given = settings_module.load(**({"database_url": "", "redis_url": ""} if options.embedded else {}))
        self._api_port = self._port(options.api_port, given.api.port, "--api-port")
        self._flower_port = self._port(options.flower_port, FLOWER_PORT, "--flower-port")
        self._postgres = None if given.database_url else Postgres(data / "postgres", ports.free())
        self._redis = None if given.redis_url else Redis(data / "redis", ports.free())
        self._settings = settings_module.load(
            database_url=self._postgres.url if self._postgres else given.database_url,
            redis_url=self._redis.url if self._redis else given.redis_url,
            secret_key=given.secret_key or SecretStr(secrets.kept(data / "secret_key")),
        )
        self._workers = lane_workers.placements(self._settings, options.lanes, options.engine)
        self.job_grace_s = given.lease.grace_s
        self.describe: Callable[[], None] = lambda: None
        self.supervisor = Supervisor(
            data / "logs",
            say,
            restarted=lambda: self.describe(),
            grace_s=self.job_grace_s + _STOP_MARGIN_S,
        )

    def start(self) -> Stack:
        """Servers first, then the schema and the key, then all else together."""
        self._start_servers()
        database = open_engine(self._settings.database_url, pool_size=1)
        try:
            migrations.upgrade(database)
            if self._postgres:
                self._forget_workers(database)
            api_key = self._api_key(database)
            flower_password = secrets.kept(self._data / "flower_password")
            self.supervisor.start(*self._parts(database, flower_password))
        finally:
            database.dispose()
        return Stack(
            api=f"http://{ports.HOST}:{self._api_port}",
            api_key=api_key,
            flower=f"http://{ports.HOST}:{self._flower_port}",
            flower_user=FLOWER_USER,
            flower_password=flower_password,
            signing_secret=self._data / _SIGNING_FILE,
            settings=self._settings,
            pids=self.supervisor.pids,
        )

    def _start_servers(self) -> None:
        servers = [server for server in (self._postgres, self._redis) if server is not None]
        for server in servers:
            server.prepare()
        self.supervisor.start(*(server.part() for server in servers))
        if self._postgres:
            self._postgres.create_database()

    def _parts(self, database: Engine, flower_password: str) -> list[Part]:
        flower_env = {"FLOWER_BASIC_AUTH": f"{FLOWER_USER}:{flower_password}"}
        api = f"http://{ports.HOST}:{self._api_port}"
        flower = f"http://{ports.HOST}:{self._flower_port}"
        # The API is ready with the last worker, and never while a lane has none, which may be as asked for.
        complete = lane_workers.complete(self._settings, self._workers)
        ready = partial(_answers, api + ("/readyz" if complete else "/healthz"))
        names = lane_workers.names(self._workers)
        loading = list(map(partial(self._worker, database), names, self._workers))
        return [
            *loading,
            self._part("api", ready=ready, start_timeout_s=max(part.start_timeout_s for part in loading)),
            self._part("control", ready=self._logged("control", "control.ready")),
            self._part(
                "beat",
                *("--schedule", str(self._data / "beat-schedule")),
                ready=self._logged("beat", "beat: Starting"),
            ),
            self._part(
                "flower",
                *("--port", str(self._flower_port)),
                ready=partial(_answers, f"{flower}/healthcheck"),
                env=flower_env,
            ),
        ]

    def _worker(self, database: Engine, name: str, entry: WorkerPlacement) -> Part:
        return self._part(
            "worker",
            *lane_workers.arguments(entry),
            name=name,
            ready=lane_workers.Readiness(name, database, lambda: self.supervisor.pids().get(name), self._say),
            niceness=lane_workers.niceness(self._settings, entry),
            start_timeout_s=lane_workers.start_timeout_s(entry),
        )

    def _part(
        self,
        command: str,
        *arguments: str,
        name: str | None = None,
        ready: Callable[[], bool] = lambda: True,
        niceness: int = 0,
        env: Mapping[str, str] | None = None,
        start_timeout_s: float = Part.start_timeout_s,
    ) -> Part:
        argv = [sys.executable, "-m", "trilane", command, *arguments]
        env = {**self._env(), **(env or {})}
        return Part(name or command, argv, env, ready, niceness, start_timeout_s=start_timeout_s)

    def _logged(self, name: str, text: str) -> Callable[[], bool]:
        path = self._data / "logs" / f"{name}.log"
        return lambda: path.exists() and text in path.read_text(errors="replace")

    def _env(self) -> dict[str, str]:
        settings, options = self._settings, self._options
        key = settings.secret_key.get_secret_value() if settings.secret_key else ""
        return {
            "TRILANE_DATABASE_URL": settings.database_url,
            "TRILANE_REDIS_URL": settings.redis_url,
            "TRILANE_SECRET_KEY": key,
            "TRILANE_API__HOST": ports.HOST,
            "TRILANE_API__PORT": str(self._api_port),
            "TRILANE_ENGINE__NAME": options.engine or settings.engine.name,
            "TRILANE_LANE": json.dumps(lane_workers.fitted_lanes(settings, self._workers, options.engine)),
            "TRILANE_WEBHOOKS__ALLOW": json.dumps([*settings.webhooks.allow, *options.webhook_allow]),
            **options.env,
        }

    def _port(self, asked: int | None, default: int, option: str) -> int:
        port = ports.choose(asked, default, option)
        if asked is None and port != default:
            self._say(f"port {default} is in use: {port} is taken instead; {option} chooses one")
        return port

    def _forget_workers(self, database: Engine) -> None:
        # All workers of an embedded database are ours: what a killed run left there is dead, not ready.
        with database.begin() as connection:
            for dead in workers.alive(connection):
                workers.leave(connection, dead.name)

    def _api_key(self, database: Engine) -> str:
        path = self._data / "api_key"
        with database.begin() as connection:
            if path.exists() and tenants.of_key(connection, path.read_text()):
                return path.read_text()
            tenant = tenants.get_or_create(connection, TENANT)
            secret = job_secrets.new_signing_secret()
            sealed = job_secrets.Vault(self._settings).encrypt(secret)
            if tenants.set_signing_secret(connection, tenant.id, sealed):
                secrets.write_private(self._data / _SIGNING_FILE, secret)
            key = tenants.create_key(connection, tenant.id)
        secrets.write_private(path, key)
        return key


@contextmanager
def _locked(data: Path) -> Iterator[None]:
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / "lock").open("a")
    except OSError as error:
        raise StackError(f"cannot write in {data} ({error.strerror}): give another --data-dir") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError(
                f"another stack runs on {data}: stop it, or give this one another --data-dir"
            ) from None
        yield


def _describe(stack: Stack, files: Sequence[Path]) -> None:
    for path in files:
        secrets.write_private(path, stack.describe())


def _remove(files: Sequence[Path]) -> None:
    for path in files:
        path.unlink(missing_ok=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - our own loopback address
            return bool(response.status == 200)
    except OSError:  # Nobody listens yet, or it answers that it is not ready.
        return False
