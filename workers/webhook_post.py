"""One attempt at a webhook: signs it, connects to an address that was checked, posts it, reads the answer.

Time is bounded in total and not per read, sizes are bounded, and no redirect is followed.
"""

import asyncio
import socket
import ssl
import uuid
from collections.abc import Iterable
from concurrent.futures import Executor
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpcore
from standardwebhooks.webhooks import EmptyWebhookSecretError, Webhook

from jobs import targets
from jobs.settings import WebhookSettings
from jobs.targets import Resolve, Target, TargetRefused

CONNECT_TIMEOUT_S = 5.0  # To one address, so that a silent one leaves time for the next.
MAX_ADDRESSES = 4
MAX_ANSWER_BYTES = 65_536
MAX_ERROR_CHARS = 200

_FAILURES = (
    TargetRefused,
    OSError,  # Names that don't resolve, and the total time limit.
    httpcore.NetworkError,
    httpcore.TimeoutException,
    httpcore.ProtocolError,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back: a status code, or none; `error` says what was wrong and never quotes the answer."""

    status_code: int | None = None
    error: str | None = None
    retry_after: str | None = None

    @property
    def success(self) -> bool:
        """Whether the receiver took the webhook."""
        return self.status_code is not None and self.error is None


def signed_headers(
    delivery_id: uuid.UUID, secret: str, payload: str, at: datetime, *old_secrets: str
) -> dict[str, str]:
    """The headers of Standard Webhooks, signed with each secret; `at` is aware UTC.

    Raises `ValueError` for a secret that is none.
    """
    message_id = str(delivery_id)
    try:
        signatures = [Webhook(one).sign(message_id, at, payload) for one in (secret, *old_secrets)]
    except (ValueError, EmptyWebhookSecretError):
        raise ValueError("the signing secret is not base64 of at least one byte") from None
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(int(at.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


class Poster:
    """Posts to receivers that nobody vouches for."""

    def __init__(
        self, limits: WebhookSettings, resolve: Resolve, lookups: Executor, tls: ssl.SSLContext
    ) -> None:
        """`resolve` runs in `lookups`, since a name server may hang."""
        self._allow = limits.allow
        self._timeout_s = limits.timeout_s
        self._resolve = resolve
        self._lookups = lookups
        self._tls = tls

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> Answer:
        """Post once; every failure is an answer too. Ends within the time limit."""
        answer = None
        try:
            async with asyncio.timeout(self._timeout_s):
                target = targets.parse(url)
                async with (
                    aclosing(_CheckedNetwork(target, self)) as network,
                    self._connection(target, network).stream(
                        "POST",
                        _url(target),
                        headers=[("Host", target.authority), *headers.items()],
                        content=body,
                    ) as response,
                ):
                    answer = _answer(response)
                    await _drain(response)
        except _FAILURES as error:
            # The status is the answer; a body that ends badly changes nothing.
            return answer or Answer(error=self._reason(error)[:MAX_ERROR_CHARS])
        return answer

    async def addresses(self, target: Target) -> list[str]:
        """Where the target may be reached right now. Raises `TargetRefused` and `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._lookups, self._resolve, target.host, target.port)
        return targets.permit(target, found, self._allow)

    def _connection(self, target: Target, network: "_CheckedNetwork") -> httpcore.AsyncHTTPConnection:
        # TLS is checked against the name in the URL, whatever address the network connects to.
        return httpcore.AsyncHTTPConnection(_url(target).origin, self._tls, network_backend=network)

    def _reason(self, error: Exception) -> str:
        match error:
            case TargetRefused():
                return f"refused: {error.reason}"
            case TimeoutError():
                return f"no answer within {self._timeout_s:g} s"
            case socket.gaierror():
                return "the host name does not resolve"
            case httpcore.ConnectError() | httpcore.ConnectTimeout():
                return f"cannot connect: {error}" if str(error) else "cannot connect: no answer"
            case httpcore.ProtocolError():
                return "the answer is not valid HTTP"  # The error's own text quotes the answer.
            case _:
                return "the connection broke before an answer"


class _CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to nothing but addresses of one target that were checked a moment before."""

    def __init__(self, target: Target, poster: Poster) -> None:
        self._target = target
        self._poster = poster
        self._network = httpcore.AnyIOBackend()
        self._stream: httpcore.AsyncNetworkStream | None = None

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the seam of httpcore has it
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        failure: Exception = httpcore.ConnectError()
        for address in (await self._poster.addresses(self._target))[:MAX_ADDRESSES]:
            try:
                self._stream = await self._network.connect_tcp(address, port, CONNECT_TIMEOUT_S)
                return self._stream
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def aclose(self) -> None:
        """Close the socket, whatever state a cancelled request left it in."""
        if self._stream:
            await self._stream.aclose()


def _url(target: Target) -> httpcore.URL:
    return httpcore.URL(
        scheme=target.scheme.encode(),
        host=target.host.encode(),
        port=target.port,
        target=target.path.encode(),
    )


def _answer(response: httpcore.Response) -> Answer:
    status = response.status
    if 200 <= status < 300:
        return Answer(status)
    error = f"answered {status}; redirects are not followed" if 300 <= status < 400 else f"answered {status}"
    asked = next((value for name, value in response.headers if name.lower() == b"retry-after"), None)
    return Answer(status, error, asked.decode("latin-1") if asked else None)


async def _drain(response: httpcore.Response) -> None:
    # Receivers log an error when a connection closes on an unread body, so a small one is read away.
    size = 0
    async for chunk in response.aiter_stream():
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            return
