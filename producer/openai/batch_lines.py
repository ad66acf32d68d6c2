"""The lines of a batch's input file: each checked and made a job, every bad one named; and their answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from jobs.domain.jobs import Job, NewJob, Surface
from jobs.domain.jsonl import Line
from jobs.domain.lanes import Kind
from jobs.settings import Settings
from jobs.store.batch_steps import OpenBatch
from jobs.store.tenants import Tenant
from producer.api.errors import ErrorBody, JobEnded
from producer.openai import bodies
from producer.prepare import Preparer
from producer.refusals import Code, Refusal
from producer.request import Request, decode, refusal_of

MAX_LINES = 50_000
MAX_ERRORS_SHOWN = 100
MAX_CUSTOM_ID_CHARS = 512
_LANE, _PRIORITY = "cold", 8  # behind what others send to that lane
_FIELDS = frozenset({"custom_id", "method", "url", "body"})


class OpenAIBatches:
    """What the control process needs to know of the API to carry batches out."""

    def __init__(self, settings: Settings) -> None:
        """Load nothing yet."""
        self._preparer, self._model = Preparer(settings), settings.model
        self.most_line_bytes = settings.api.max_body_bytes

    def check(self, batch: OpenBatch) -> "LineCheck":
        """A check for the lines of a batch."""
        return LineCheck(self._preparer, batch, self._model, self.most_line_bytes)

    def answer(self, endpoint: str, job: Job, result: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """The HTTP status and the body that answer a job, which succeeded or failed."""
        if result is not None:
            return 200, bodies.to_result(endpoint, job, result)
        ended = JobEnded(job.error_code or Code.INTERNAL_ERROR, job.error_message or "")
        return ended.status, ended.body().model_dump()

    def crashed(self) -> Mapping[str, Any]:
        """The errors of a batch whose check met a bug."""
        return _shown([_Bad(None, None, Refusal(Code.INTERNAL_ERROR, "Something went wrong here"))], 1)


@dataclass(frozen=True, slots=True)
class _Bad:
    """A line that is wrong, and why; without a line it is the file."""

    line: int | None
    custom_id: str | None
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class _Asked:
    line: int
    custom_id: str
    request: Request
    shown: Mapping[str, Any]


class LineCheck:
    """Checks the lines of one batch in order. `model` and `total` are of what it has seen.

    Once there are more lines than allowed it is `done`.
    """

    def __init__(
        self, preparer: Preparer, batch: OpenBatch, default_model: str, most_line_bytes: int
    ) -> None:
        """A line that names no model asks for `default_model`, as everywhere."""
        self._preparer, self._batch, self._most_line_bytes = preparer, batch, most_line_bytes
        self._default_model = default_model
        self._tenant = Tenant(batch.tenant_id, "", None)
        self._custom_ids: dict[str, int] = {}
        self._bad: list[_Bad] = []
        self._bad_lines = 0
        self.model: str | None = None
        self.total = 0
        self.done = False

    def jobs(self, lines: Sequence[Line]) -> list[tuple[int, str, NewJob]]:
        """The jobs of the next lines that are right, each with its line and its `custom_id`."""
        asked = [one for line in lines if not self.done and (one := self._asked(line)) is not None]
        found = []
        for one, job in zip(
            asked, self._preparer.each(self._tenant, [one.request for one in asked]), strict=True
        ):
            if isinstance(job, Refusal):
                self._refuse(one.line, one.custom_id, _in_body(bodies.renamed(self._batch.endpoint, job)))
            else:
                request = {**job.request, **({"shown": one.shown} if one.shown else {})}
                job = replace(job, request=request, deadline=self._batch.expires_at, surface=Surface.BATCH)
                found.append((one.line, one.custom_id, job))
        return found

    def errors(self) -> Mapping[str, Any] | None:
        """What is wrong with the lines so far, as the batch shows it; None where nothing is."""
        if not self.total:
            self._bad, self._bad_lines = [_Bad(None, None, Refusal(Code.EMPTY, "The file has no lines"))], 1
        return _shown(self._bad, self._bad_lines) if self._bad else None

    def _asked(self, line: Line) -> _Asked | None:
        """What a line asks; None where it is wrong, which is noted."""
        self.total += 1
        custom_id = None
        try:
            if self.total > MAX_LINES:
                self.done = True
                raise Refusal(Code.TOO_MANY_LINES, "The file has more lines than that", limit=MAX_LINES)
            given = self._object(line)
            custom_id = _name(given)
            self._check_custom_id(given, line.number)
            self._check_address(given)
            body = given.get("body")
            if not isinstance(body, dict):
                raise _wrong("body", "an object")
            request = self._request(body)
        except Refusal as refusal:
            self._refuse(line.number, custom_id, refusal)
            return None
        return _Asked(line.number, custom_id or "", request, bodies.shown(self._batch.endpoint, body))

    def _object(self, line: Line) -> dict[str, Any]:
        if line.data is None:
            raise Refusal(
                Code.BODY_TOO_LARGE, "The line is longer than that in bytes", limit=self._most_line_bytes
            )
        given = decode(line.data)
        if not isinstance(given, dict):
            raise Refusal(Code.INVALID_JSON, "The line is not one JSON object")
        return given

    def _check_custom_id(self, given: Mapping[str, Any], line: int) -> None:
        custom_id = given.get("custom_id")
        if custom_id is None:
            raise Refusal(Code.MISSING_FIELD, "The line has no custom_id", field="custom_id")
        if not isinstance(custom_id, str):
            raise _wrong("custom_id", "a text")
        if not 1 <= len(custom_id) <= MAX_CUSTOM_ID_CHARS or not custom_id.isprintable():
            raise Refusal(
                Code.INVALID_VALUE,
                "A custom_id is printable characters, not too many",
                field="custom_id",
                limit=MAX_CUSTOM_ID_CHARS,
            )
        first = self._custom_ids.setdefault(custom_id, line)
        if first != line:
            raise Refusal(Code.DUPLICATE_CUSTOM_ID, f"Line {first} has it already", field="custom_id")

    def _check_address(self, given: Mapping[str, Any]) -> None:
        unknown = sorted(given.keys() - _FIELDS)
        if unknown:
            raise Refusal(Code.UNKNOWN_FIELD, "There is no such field", field=unknown[0][:200])
        for name, wanted in (("method", "POST"), ("url", self._batch.endpoint)):
            if given.get(name) != wanted:
                code = Code.INVALID_VALUE if name in given else Code.MISSING_FIELD
                raise Refusal(code, f"Input should be {wanted}", field=name, limit=wanted)

    def _request(self, body: Mapping[str, Any]) -> Request:
        try:
            request = bodies.to_request(self._batch.endpoint, body)
        except ValidationError as error:
            refusal = refusal_of(error.errors(include_url=False, include_input=False))
            raise _in_body(bodies.renamed(self._batch.endpoint, refusal)) from None
        except Refusal as refusal:
            raise _in_body(refusal) from None
        model = request.model or self._default_model
        self.model = self.model or model
        if model != self.model:
            raise Refusal(
                Code.MIXED_MODELS,
                "Another model than that of the first line",
                field="body.model",
                limit=self.model,
            )
        return request.model_copy(update={"kind": Kind.REPORT, "lane": _LANE, "priority": _PRIORITY})

    def _refuse(self, line: int, custom_id: str | None, refusal: Refusal) -> None:
        self._bad_lines += 1
        if len(self._bad) < MAX_ERRORS_SHOWN or self.done:
            self._bad.append(_Bad(line, custom_id, refusal))


def _name(given: Mapping[str, Any]) -> str | None:
    """The `custom_id` by which a line is named, right or wrong."""
    custom_id = given.get("custom_id")
    return custom_id[:MAX_CUSTOM_ID_CHARS] if isinstance(custom_id, str) else None


def _in_body(refusal: Refusal) -> Refusal:
    refusal.field = f"body.{refusal.field}" if refusal.field else "body"
    return refusal


def _wrong(field: str, wanted: str) -> Refusal:
    return Refusal(Code.WRONG_TYPE, f"Input should be {wanted}", field=field)


def _shown(bad: Sequence[_Bad], total: int) -> Mapping[str, Any]:
    """OpenAI's list of errors; beside what it has, the `custom_id` of each and how many there are."""
    data = []
    for one in sorted(bad, key=lambda one: one.line or 0):  # the tokens of a stretch are counted at last
        error = ErrorBody.of(one.refusal).error
        data.append(
            {
                "line": one.line,
                "custom_id": one.custom_id,
                "code": error.code,
                "param": error.param,
                "message": error.message,
                "limit": error.limit,
            }
        )
    return {"object": "list", "data": data, "total": total}
