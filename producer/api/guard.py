"""The outermost layer: names and times every request, and answers for bugs without telling what was in it."""

import time
import uuid

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from producer.api.errors import internal_error
from producer.api.metrics import Metrics

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class Guard:
    """ASGI middleware. A bug ends here: the server would log its text, which may quote a prompt.

    What a route leaves in `request.state.headers` goes with the answer, whether that is an error or not.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0
        request_id = f"req_{uuid.uuid4().hex}"

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, took_s = message["status"], time.perf_counter() - began
                self._observe(scope, status, took_s)
                headers = {
                    "x-request-id": request_id,
                    "openai-processing-ms": f"{took_s * 1_000:.0f}",
                    **scope.get("state", {}).get("headers", {}),
                }
                more = [(name.encode(), value.encode()) for name, value in headers.items()]
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, sending)
            except ClientDisconnect:
                return
            except Exception as error:  # The edge of the request: logged there without its text.
                response = internal_error(error)
                if not status:
                    await response(scope, receive, sending)

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        # Labels must be few: the route's pattern, not the path, and no method that somebody made up.
        route = getattr(scope.get("route"), "path", "unmatched")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._metrics.requests.labels(method, route, str(status)).observe(seconds)
