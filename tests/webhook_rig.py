"""Webhook receivers on loopback that follow a script, and what tests of the sender do again and again."""

import ssl
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sqlalchemy import Engine, text

from jobs import targets
from jobs.domain.jobs import Webhook
from jobs.settings import Settings
from jobs.store import intake, job_deliveries, moves
from jobs.targets import Resolve
from tests.conftest import JobMaker
from tests.waiting import until
from workers.webhooks import WebhookSender

WAIT_S = 20.0
EVENT = "job.cancelled"


@dataclass(frozen=True)
class Request:
    """What a receiver got."""

    id: str
    body: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Exchange:
    """One request as a script sees it: the `number`-th of its receiver. `released` is set at the end."""

    handler: BaseHTTPRequestHandler
    number: int
    released: threading.Event

    def answer(self, status: int, headers: dict[str, str]) -> None:
        self.handler.send_response(status)
        for name, value in ({"Content-Length": "0"} | headers).items():
            self.handler.send_header(name, value)
        self.handler.end_headers()

    def write(self, data: bytes) -> None:
        self.handler.wfile.write(data)


Script = Callable[[Exchange], None]


def answer(status: int, **headers: str) -> Script:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda exchange: exchange.answer(status, named)


def hang(exchange: Exchange) -> None:
    exchange.released.wait()


def answer_late(exchange: Exchange) -> None:
    exchange.released.wait()
    exchange.answer(204, {})


def in_turn(*scripts: Script) -> Script:
    """The n-th request meets the n-th script; the last script stays."""
    return lambda exchange: scripts[min(exchange.number, len(scripts)) - 1](exchange)


@dataclass
class Receiver:
    """An HTTP server that does what its script says and keeps every request."""

    script: Script
    tls: ssl.SSLContext | None = None
    requests: list[Request] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)
    at_once: int = 0
    most_at_once: int = 0

    def __post_init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.handle(self)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if self.tls:
            self.server.socket = self.tls.wrap_socket(self.server.socket, server_side=True)
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers["content-length"])).decode()
        headers = {name.lower(): value for name, value in handler.headers.items()}
        with self.changed:
            self.requests.append(Request(headers["webhook-id"], body, headers))
            exchange = Exchange(handler, len(self.requests), self.released)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            self.changed.notify_all()
        try:
            self.script(exchange)
        except OSError:
            handler.close_connection = True  # The sender has hung up, as some tests expect it to.
        finally:
            with self.changed:
                self.at_once -= 1

    @property
    def port(self) -> int:
        return self.server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        with self.changed:
            return [request.id for request in self.requests]

    def wait(self, count: int) -> list[Request]:
        """Wait until so many requests have come."""
        with self.changed:
            came = self.changed.wait_for(lambda: len(self.requests) >= count, WAIT_S)
            assert came, f"{len(self.requests)} of {count} requests came"
            return list(self.requests)

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


@dataclass(frozen=True)
class Stored:
    """A delivery and its attempts, as the job's page shows them."""

    id: uuid.UUID
    job_id: uuid.UUID
    status: str
    next_attempt_at: datetime | None
    codes: list[int | None]
    errors: list[str]
    durations_ms: list[float]


@dataclass
class Rig:
    """Deliveries in a database, receivers for them, and senders that may reach loopback and soon retry."""

    engine: Engine
    settings: Settings
    new_job: JobMaker
    receivers: list[Receiver] = field(default_factory=list)
    senders: list[WebhookSender] = field(default_factory=list)

    def receive(self, *scripts: Script, tls: ssl.SSLContext | None = None) -> Receiver:
        """A receiver that follows the scripts in turn, by default one that takes everything."""
        receiver = Receiver(in_turn(*(scripts or (answer(204),))), tls)
        self.receivers.append(receiver)
        return receiver

    def notify(self, url: str, count: int = 1, secret: str | None = None) -> None:
        """Write deliveries as they come to be: with the event of a job. `secret` is sealed."""
        jobs = [self.new_job(webhook=Webhook(url, (EVENT,), secret)) for _ in range(count)]
        with self.engine.begin() as connection:
            intake.insert_many(connection, jobs)
            for job in jobs:
                moves.cancel(connection, job.tenant_id, job.id)

    def send(
        self, resolve: Resolve = targets.resolve, tls: ssl.SSLContext | None = None, **limits: Any
    ) -> WebhookSender:
        """Start a sender; `limits` are its settings."""
        given = {"allow": ("127.0.0.0/8",), "timeout_s": 10.0, "retry_scale": 1e-5} | limits
        changed = self.settings.webhooks.model_copy(update=given)
        sender = WebhookSender(
            self.settings.model_copy(update={"webhooks": changed}), self.engine, resolve, tls
        )
        self.senders.append(sender)
        sender.start()
        return sender

    def execute(self, statement: str) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement))

    def stored(self) -> list[Stored]:
        """All deliveries, oldest first."""
        with self.engine.begin() as connection:
            jobs = connection.execute(text("SELECT DISTINCT job_id FROM webhook_deliveries")).scalars().all()
            found = [(job, one) for job in jobs for one in job_deliveries.of_job(connection, job)]
        return sorted((_stored(job, one) for job, one in found), key=lambda one: one.id)

    def attempted(self) -> Stored:
        """The only delivery, once it was attempted."""
        [one] = until(lambda: [one for one in self.stored() if one.codes])
        return one

    def ended(self, count: int = 1) -> list[Stored]:
        """All deliveries, once they have ended."""
        until(lambda: all(one.status != "pending" for one in self.stored()))
        found = self.stored()
        assert len(found) == count
        return found

    def close(self) -> None:
        for receiver in self.receivers:
            receiver.close()
        for sender in self.senders:
            sender.stop(WAIT_S)


def _stored(job_id: uuid.UUID, one: dict[str, Any]) -> Stored:
    log = one["attempt_log"]
    return Stored(
        one["id"],
        job_id,
        one["status"],
        one["next_attempt_at"],
        [attempt["status_code"] for attempt in log],
        [attempt["error"] or "" for attempt in log],
        [attempt["duration_ms"] for attempt in log],
    )
