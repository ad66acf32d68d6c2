"""A small webhook receiver on loopback that checks each signature, for the demo and the tests."""

import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from standardwebhooks import Webhook, WebhookVerificationError

from trilane.stack import ports

MAX_BODY_BYTES = 4 * 1_048_576


@dataclass(frozen=True, slots=True)
class Delivery:
    """One request that came in."""

    id: str  # the `webhook-id`, the same over retries
    body: bytes
    verified: bool


class Receiver:
    """Answers 204 to a delivery whose signature is right and 401 to any other. Use it with `with`."""

    def __init__(self, secret: str, port: int = 0) -> None:
        """`secret` is the signing secret (`whsec_...`); port 0 takes a free one."""
        self._webhook = Webhook(secret)
        self._deliveries: list[Delivery] = []
        self._arrived = threading.Condition()
        self._server = ThreadingHTTPServer((ports.HOST, port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """Where to send webhooks."""
        return f"http://{ports.HOST}:{self._server.server_port}/"

    @property
    def deliveries(self) -> list[Delivery]:
        """Every request so far, repeats included."""
        with self._arrived:
            return list(self._deliveries)

    @property
    def delivered(self) -> set[str]:
        """The ids of the webhooks that arrived."""
        return {delivery.id for delivery in self.deliveries}

    @property
    def verified(self) -> set[str]:
        """The ids of the webhooks that arrived with a right signature."""
        return {delivery.id for delivery in self.deliveries if delivery.verified}

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` different webhooks have arrived; False if they did not in time."""
        with self._arrived:
            return self._arrived.wait_for(
                lambda: len({one.id for one in self._deliveries}) >= count, timeout_s
            )

    def receive(self, body: bytes, headers: dict[str, str]) -> bool:
        """Check and record one delivery; whether its signature is right."""
        try:
            self._webhook.verify(body, headers, json_parse=False)
            verified = True
        except (WebhookVerificationError, ValueError):  # ValueError: a signature that is no base64
            verified = False
        with self._arrived:
            self._deliveries.append(Delivery(headers.get("webhook-id", ""), body, verified))
            self._arrived.notify_all()
        return verified

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_POST(self) -> None:
                length = min(int(self.headers.get("content-length") or 0), MAX_BODY_BYTES)
                headers = {name.lower(): value for name, value in self.headers.items()}
                right = receiver.receive(self.rfile.read(length), headers)
                self.send_response(HTTPStatus.NO_CONTENT if right else HTTPStatus.UNAUTHORIZED)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass  # The demo prints its own account.

        return Handler
