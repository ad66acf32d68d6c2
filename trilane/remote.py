"""The HTTP API from the command line: where it is, and calls that outlast a lost connection."""

import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import click
import httpx

STACK_FILE = Path(".trilane", "stack.json")  # written by a running `trilane up`
_TRIES = 6
_SILENCE_S = 45.0  # three times the API's heartbeat
_TRANSFER_S = 300.0  # without a byte, while a large file is stored or sent
_RETRIED = (502, 503, 504)


class Refused(click.ClickException):
    """The API did not do it; `error` is its reason in the API's form."""

    def __init__(self, error: dict[str, Any]) -> None:
        self.error = error
        field = f"{error['field']}: " if error.get("field") else ""
        remedy = f" {error['remedy']}" if error.get("remedy") else ""
        super().__init__(f"{field}{error['message']} ({error['code']}).{remedy}")


class Remote:
    """One API and one key; safe in threads."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0)

    @classmethod
    def found(cls, url: str | None, key: str | None) -> Self:
        """The API that is named, else the one of the stack that runs here. Raises `click.ClickException`."""
        if url and key:
            return cls(url, key)
        stack = running_stack()
        if stack is None:
            raise click.ClickException(
                "no stack runs in this directory: start one with `trilane up`, or name an API with --api and"
                " --key (TRILANE_API_URL, TRILANE_API_KEY)"
            )
        return cls(url or stack["api"], key or stack["api_key"])

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        """Submit one job; however often it is tried, there is one."""
        # The API itself shall refuse what is no JSON, such as NaN: so it is not left to the client library.
        content, key = json.dumps(body).encode(), str(uuid.uuid4())
        return self._call("POST", "/v1/jobs", content=content, headers={"Idempotency-Key": key})

    def get(self, job_id: str) -> dict[str, Any]:
        """The job with its result and latency."""
        return self._call("GET", f"/v1/jobs/{job_id}")

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel a job."""
        return self._call("POST", f"/v1/jobs/{job_id}/cancel")

    def lanes(self) -> dict[str, Any]:
        """The figures of all lanes."""
        return self._call("GET", "/v1/lanes")

    def upload(self, path: Path) -> dict[str, Any]:
        """Upload a file for a batch."""

        def send() -> httpx.Response:
            with path.open("rb") as content:
                return self._http.post(
                    "/v1/files",
                    files={"file": (path.name, content)},
                    data={"purpose": "batch"},
                    timeout=_TRANSFER_S,
                )

        return self._retried(send)

    def create_batch(self, file_id: str, endpoint: str, window: str) -> dict[str, Any]:
        """Start a batch on a file that has none yet; however often it is tried, there is one."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}

        def send() -> httpx.Response:
            newest = self._http.get("/v1/batches", params={"limit": 100})
            made = [batch for batch in _check(newest)["data"] if batch["input_file_id"] == file_id]
            if made:
                return self._http.get(f"/v1/batches/{made[0]['id']}")
            return self._http.post("/v1/batches", json=body)

        return self._retried(send)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """A batch as it stands now."""
        return self._call("GET", f"/v1/batches/{batch_id}")

    def batches(self, limit: int) -> dict[str, Any]:
        """The newest batches."""
        return self._call("GET", "/v1/batches", params={"limit": limit})

    def cancel_batch(self, batch_id: str) -> dict[str, Any]:
        """Cancel what is left of a batch."""
        return self._call("POST", f"/v1/batches/{batch_id}/cancel")

    def download(self, file_id: str, path: Path) -> None:
        """Write a file's content there; what is not whole does not stay. Raises `click.ClickException`."""
        part = path.with_name(f"{path.name}.part")
        try:
            with self._http.stream("GET", f"/v1/files/{file_id}/content", timeout=_TRANSFER_S) as answer:
                if answer.is_error:
                    answer.read()
                    _check(answer)
                with part.open("wb") as output:
                    output.writelines(answer.iter_bytes())
        except (httpx.TransportError, _Away) as error:
            part.unlink(missing_ok=True)
            raise self._unreachable(error) from None
        part.replace(path)

    def follow(self, job_id: str, timeout_s: float | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """The job's events, the last of them `ended` with the job; a lost connection is taken up again.

        Raises `TimeoutError` after `timeout_s` seconds, `click.ClickException` where the API stays away.
        """
        until = time.monotonic() + timeout_s if timeout_s is not None else float("inf")
        last_id, failures = "", 0
        while True:
            try:
                for event_id, event, data in self._events(job_id, last_id, until):
                    last_id, failures = event_id or last_id, 0
                    yield event, data
                    if event == "ended":
                        return
            except (httpx.TransportError, _Away) as error:
                failures += 1
                if failures >= _TRIES:
                    raise self._unreachable(error) from None
            if time.monotonic() >= until:
                raise TimeoutError
            time.sleep(min(0.25 * 2**failures, 5.0, max(0.0, until - time.monotonic())))

    def end_of(self, job_id: str, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait for the end of a job. Raises `click.ClickException` where it is late, or no longer kept."""
        try:
            for event, data in self.follow(job_id, timeout_s):
                if event == "ended":
                    return data
        except TimeoutError:
            raise click.ClickException(f"{job_id} has not ended within {timeout_s:g} s") from None
        raise click.ClickException(f"{job_id} is no longer kept")

    def _events(self, job_id: str, last_id: str, until: float) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """The events of one connection, each as id, type and data."""
        read_s = max(0.1, min(_SILENCE_S, until - time.monotonic()))
        headers = {"Last-Event-ID": last_id} if last_id else {}
        event_id = event = ""
        path, timeout = f"/v1/jobs/{job_id}/events", httpx.Timeout(10.0, read=read_s)
        with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.is_error:
                answer.read()
                _check(answer)
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    event_id = value
                elif name == "event":
                    event = value
                elif name == "data":
                    yield event_id, event, json.loads(value)
                if time.monotonic() >= until:
                    return

    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        return self._retried(lambda: self._http.request(method, path, **options))

    def _retried(self, send: Callable[[], httpx.Response]) -> dict[str, Any]:
        failures = 0
        while True:
            try:
                return _check(send())
            except (httpx.TransportError, _Away) as error:
                failures += 1
                if failures == _TRIES:
                    raise self._unreachable(error) from None
            time.sleep(0.1 * 2**failures)

    def _unreachable(self, error: Exception) -> click.ClickException:
        return click.ClickException(f"the API at {self.url} does not answer ({error}): is the stack running?")


class _Away(Exception):
    """The API answered that it cannot work now."""


def running_stack() -> dict[str, Any] | None:
    """What the stack that runs in this directory says of itself, if there is one."""
    try:
        stack: dict[str, Any] = json.loads(STACK_FILE.read_text())
    except FileNotFoundError:
        return None
    return stack


def _check(answer: httpx.Response) -> dict[str, Any]:
    """The body of a success. Raises `Refused`, or `_Away` for what may pass."""
    if answer.status_code in _RETRIED:
        raise _Away(f"status {answer.status_code}")
    try:
        body: dict[str, Any] = answer.json()
    except ValueError:
        raise click.ClickException(f"{answer.url} is not Trilane's API") from None
    if answer.is_error:
        raise Refused(body["error"])
    return body


def connection_options(command: Any) -> Any:
    """Adds --api, --key and --json to a command."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, one value a line."),
        click.option("--key", envvar="TRILANE_API_KEY", help="API key.  [default: the local stack's]"),
        click.option(
            "--api", envvar="TRILANE_API_URL", help="Address of the API.  [default: the local stack's]"
        ),
    ):
        command = option(command)
    return command
