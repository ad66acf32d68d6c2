"""Calls every method of the official client's resources that Trilane serves, and tells what came of it.

`python -m benchmarks.openai_methods --markdown docs/openai-methods.md` starts a stack with the simulated
engine and writes the table. A method that the package has and this file does not call is an error.
"""

import argparse
import inspect
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from openai import OpenAI
from openai._resource import SyncAPIResource  # the package's own, to know a resource from a method

from jobs.secrets import new_signing_secret
from trilane.stack import local
from trilane.stack.receiver import Receiver
from workers.webhook_post import signed_headers

RESOURCES = ("responses", "chat", "files", "batches", "webhooks", "models")
_HELLO: Any = [{"role": "user", "content": "Hello"}]
_LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/chat/completions",
    "body": {"messages": _HELLO, "max_tokens": 4},
}


@dataclass(frozen=True, slots=True)
class Row:
    """A method, and what came of a call."""

    method: str
    outcome: str


class Calls:
    """One call of every method, by name; what a call needs is made before it."""

    def __init__(self, client: OpenAI, model: str, receiver: str) -> None:
        """`receiver` is a URL that answers webhooks."""
        self._client, self._model, self._receiver = client, model, receiver

    def all(self) -> Mapping[str, Callable[[], object]]:
        """The calls."""
        return {**self._responses(), **self._chat(), **self._files(), **self._webhooks(), **self._models()}

    def _response(self, **more: Any) -> Any:
        return self._client.responses.create(model=self._model, input="Hello", max_output_tokens=16, **more)

    def _responses(self) -> Mapping[str, Callable[[], object]]:
        responses = self._client.responses
        return {
            "responses.create": self._response,
            "responses.stream": lambda: _through(
                responses.stream(model=self._model, input="Hello", max_output_tokens=16)
            ),
            "responses.parse": lambda: responses.parse(
                model=self._model, input="Hello", max_output_tokens=16
            ),
            "responses.retrieve": lambda: responses.retrieve(self._response().id),
            "responses.cancel": lambda: responses.cancel(self._response(background=True).id),
            "responses.delete": lambda: responses.delete(self._response().id),
            "responses.input_items.list": lambda: list(responses.input_items.list(self._response().id)),
            "responses.input_tokens.count": lambda: responses.input_tokens.count(
                model=self._model, input="Hello"
            ),
            "responses.compact": lambda: responses.compact(model=self._model, input="Hello"),
            "responses.connect": lambda: _through(responses.connect()),
        }

    def _chat(self) -> Mapping[str, Callable[[], object]]:
        completions = self._client.chat.completions
        asked: dict[str, Any] = {"model": self._model, "messages": _HELLO, "max_tokens": 4}
        return {
            "chat.completions.create": lambda: completions.create(**asked),
            "chat.completions.stream": lambda: _through(completions.stream(**asked)),
            "chat.completions.parse": lambda: completions.parse(**asked, stop=" "),
            "chat.completions.retrieve": lambda: completions.retrieve("chatcmpl-1"),
            "chat.completions.update": lambda: completions.update("chatcmpl-1", metadata={}),
            "chat.completions.list": lambda: list(completions.list()),
            "chat.completions.delete": lambda: completions.delete("chatcmpl-1"),
            "chat.completions.messages.list": lambda: list(completions.messages.list("chatcmpl-1")),
        }

    def _file(self) -> Any:
        line = {**_LINE, "body": {**_LINE["body"], "model": self._model}}  # type: ignore[dict-item]
        return self._client.files.create(file=("lines.jsonl", json.dumps(line).encode()), purpose="batch")

    def _old_content(self, file_id: str) -> object:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return self._client.files.retrieve_content(file_id)

    def _batch(self) -> Any:
        return self._client.batches.create(
            input_file_id=self._file().id, endpoint="/v1/chat/completions", completion_window="24h"
        )

    def _files(self) -> Mapping[str, Callable[[], object]]:
        files, batches = self._client.files, self._client.batches
        return {
            "files.create": self._file,
            "files.retrieve": lambda: files.retrieve(self._file().id),
            "files.list": lambda: list(files.list()),
            "files.content": lambda: files.content(self._file().id).read(),
            "files.retrieve_content": lambda: self._old_content(self._file().id),
            "files.wait_for_processing": lambda: files.wait_for_processing(self._file().id),
            "files.delete": lambda: files.delete(self._file().id),
            "batches.create": self._batch,
            "batches.retrieve": lambda: batches.retrieve(self._batch().id),
            "batches.list": lambda: list(batches.list()),
            "batches.cancel": lambda: batches.cancel(self._batch().id),
        }

    def _endpoint(self) -> Any:
        return self._client.webhooks.create(
            name="an endpoint", url=self._receiver, event_types=["response.completed"]
        )

    def _webhooks(self) -> Mapping[str, Callable[[], object]]:
        webhooks = self._client.webhooks
        event = '{"id": "1", "type": "response.completed", "created_at": 1, "data": {"id": "resp_1"}}'
        secret = new_signing_secret()

        def signed() -> dict[str, str]:
            from jobs.domain import clock
            from jobs.domain.jobs import new_id

            return signed_headers(new_id(), secret, event, clock.now())

        return {
            "webhooks.create": self._endpoint,
            "webhooks.retrieve": lambda: webhooks.retrieve(self._endpoint().id),
            "webhooks.update": lambda: webhooks.update(self._endpoint().id, name="another name"),
            "webhooks.list": lambda: list(webhooks.list()),
            "webhooks.rotate_secret": lambda: webhooks.rotate_secret(self._endpoint().id),
            "webhooks.test": lambda: webhooks.test(self._endpoint().id, event_type="response.completed"),
            "webhooks.delete": lambda: webhooks.delete(self._endpoint().id),
            "webhooks.event_types.list": lambda: webhooks.event_types.list(),
            "webhooks.unwrap": lambda: webhooks.unwrap(event, signed(), secret=secret),
            "webhooks.verify_signature": lambda: webhooks.verify_signature(event, signed(), secret=secret),
        }

    def _models(self) -> Mapping[str, Callable[[], object]]:
        models = self._client.models
        return {
            "models.list": lambda: list(models.list()),
            "models.retrieve": lambda: models.retrieve(self._model),
            "models.delete": lambda: models.delete(self._model),
        }


def outcomes(client: OpenAI, model: str, receiver: str) -> list[Row]:
    """Every method of the resources, called. Raises `LookupError` where one is not called here."""
    calls = Calls(client, model, receiver).all()
    methods = [name for resource in RESOURCES for name in _methods(getattr(client, resource), resource)]
    if unknown := set(methods) ^ set(calls):
        raise LookupError(f"the package and this file differ in {', '.join(sorted(unknown))}")
    return [Row(method, _outcome(calls[method])) for method in methods]


def markdown(rows: list[Row]) -> str:
    """The table."""
    served = sum(row.outcome == "works" for row in rows)
    lines = [f"| `client.{row.method}` | {row.outcome} |" for row in rows]
    return "\n".join(
        [
            "# The official client's methods",
            "",
            f"Each method of `openai` {openai.__version__}, in the resources served here, called once on a",
            f"stack with the simulated engine: {served} of {len(rows)} work, the others are refused. Made by",
            "`python -m benchmarks.openai_methods --markdown docs/openai-methods.md`.",
            "",
            "| method | outcome |",
            "|---|---|",
            *lines,
            "",
        ]
    )


def _methods(resource: SyncAPIResource, path: str) -> Iterator[str]:
    for name in dir(type(resource)):
        if name.startswith(("_", "with_")):
            continue
        if inspect.isfunction(inspect.getattr_static(type(resource), name)):
            yield f"{path}.{name}"
        elif isinstance(part := getattr(resource, name), SyncAPIResource):
            yield from _methods(part, f"{path}.{name}")


def _outcome(call: Callable[[], object]) -> str:
    try:
        call()
    except openai.APIStatusError as error:
        return f"refused: {error.status_code} `{error.code}`"
    except Exception as error:  # what the package itself makes of an answer is an outcome too
        return f"refused: {type(error).__name__}"
    return "works"


def _through(manager: Any) -> None:
    with manager as stream:
        for _ in stream:
            pass


def main() -> None:
    """Start a stack, call everything, write or print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path, help="write the table there; default: print it")
    path = parser.parse_args().markdown
    with (
        tempfile.TemporaryDirectory(prefix="trilane-methods-") as home,
        Receiver(new_signing_secret()) as receiver,
        local.running(
            local.Options(
                data_dir=Path(home),
                engine="sim",
                embedded=True,
                webhook_allow=("127.0.0.1/32",),
                api_port=0,
                flower_port=0,
            )
        ) as stack,
        OpenAI(base_url=f"{stack.api}/v1", api_key=stack.api_key, max_retries=0) as client,
    ):
        table = markdown(outcomes(client, stack.settings.model, receiver.url))
    if path:
        path.write_text(table)
    else:
        sys.stdout.write(table)


if __name__ == "__main__":
    main()
