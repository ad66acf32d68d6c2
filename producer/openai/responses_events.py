"""The typed events of a response's stream, numbered so that a stream can be gone on with anywhere.

A number follows from the attempt and the place in its answer alone. So the events are the same live and from
the stored answer, and the last number that a client got tells what it has:

    0, 1, 2                   response.created, .queued, .in_progress
    base + 3, base + 4        output_item.added, content_part.added
    base + 4 + k              output_text.delta that ends behind the answer's character k
    the next four             output_text.done, content_part.done, output_item.done, response.completed
    the last before a base    response.failed, or the error that tells of a cancel

where base is `SPACING` for each attempt before the one that is answered.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from jobs.domain import openai_ids
from jobs.domain.jobs import Job, Status
from jobs.domain.openai_ids import Prefix
from jobs.store.reads import JobDetail
from jobs.store.responses import Asked
from producer.openai.following import Closing, Ended, Piece, Progress, Running
from producer.openai.responses_views import OutputMessage, OutputText, ResponseView, message_of

SPACING = 10_000_000  # more than any answer has characters
DELTA_CHARS = 4  # about a token. Where a delta ends must not depend on how the text came.
_TEXT = 4  # the number behind which the text begins
_FIRST_OF_TEXT = 3

Event = Mapping[str, Any]


class Events:
    """The events that one client has not got yet; `after` is the number of the last that it has."""

    def __init__(self, asked: Asked, job: Job, after: int | None = None) -> None:
        self._asked, self._job = asked, job
        self._last = -1 if after is None else after
        self._text = ""
        self.over = False  # nothing follows

    def begin(self) -> Iterator[Event]:
        """What comes before anything happens."""
        yield from self._of_response(0, "created", self._begun(Status.QUEUED))
        yield from self._of_response(1, "queued", self._begun(Status.QUEUED))

    def of(self, progress: Progress) -> Iterator[Event]:
        """What this progress makes known."""
        match progress:
            case Running(attempt):
                yield from self._running(attempt)
            case Piece(attempt, start, text):
                yield from self._running(attempt)
                if not self.over:
                    self._text = self._text[:start] + text
                    whole = len(self._text) - len(self._text) % DELTA_CHARS
                    yield from self._texts(attempt, whole)
            case Ended(detail, attempt):
                yield from self._ended(detail, attempt)
            case Closing():
                # Not a number of its own: who resumes behind it misses nothing.
                yield self._error(self._last, "server_stopping", "Go on with starting_after")

    @property
    def _told(self) -> int:
        """The attempt whose text the client has or began to get; 0 is none."""
        return self._last // SPACING + 1 if self._last % SPACING >= _FIRST_OF_TEXT else 0

    def _running(self, attempt: int) -> Iterator[Event]:
        if self._told not in (0, attempt):
            yield self._error(self._last + 1, "attempt_lost", "The text so far is void: the work began again")
        else:
            yield from self._of_response(2, "in_progress", self._begun(Status.RUNNING))

    def _texts(self, attempt: int, upto: int) -> Iterator[Event]:
        """The text up to the character `upto`, and what opens it."""
        base = (attempt - 1) * SPACING
        empty = OutputMessage(id=self._item_id, status="in_progress", content=[])
        yield from self._of_item(base + _FIRST_OF_TEXT, "output_item.added", item=empty.model_dump())
        part = OutputText(text="").model_dump()
        yield from self._of_part(base + _TEXT, "content_part.added", part=part)
        while (start := self._last - base - _TEXT) < upto:
            end = min(start - start % DELTA_CHARS + DELTA_CHARS, upto)
            delta = self._text[start:end]
            yield from self._of_part(base + _TEXT + end, "output_text.delta", delta=delta, logprobs=[])

    def _ended(self, detail: JobDetail | None, attempt: int) -> Iterator[Event]:
        if detail is None:
            yield self._error(self._last + 1, "response_deleted", "The response was deleted")
        elif detail.result is not None:
            yield from self._running(attempt)
            if not self.over:
                yield from self._answered(detail, detail.result, attempt)
        elif detail.job.status is Status.CANCELLED:
            yield from self._unless_got(
                max(attempt, 1) * SPACING - 1, "response_cancelled", "It was cancelled"
            )
        else:
            view = ResponseView.of(self._asked, detail)
            yield from self._of_response(max(attempt, 1) * SPACING - 1, "failed", view)
        self.over = True

    def _answered(self, detail: JobDetail, result: Mapping[str, Any], attempt: int) -> Iterator[Event]:
        self._text = result["output"]
        yield from self._texts(attempt, len(self._text))
        last = (attempt - 1) * SPACING + _TEXT + len(self._text)
        message = message_of(detail.job, result)
        part = message.content[0].model_dump()
        done = {"text": self._text, "logprobs": part["logprobs"]}
        yield from self._of_part(last + 1, "output_text.done", **done)
        yield from self._of_part(last + 2, "content_part.done", part=part)
        yield from self._of_item(last + 3, "output_item.done", item=message.model_dump())
        view = ResponseView.of(self._asked, detail)
        yield from self._of_response(last + 4, view.status, view)

    # --- single events ------------------------------------------------------------------------------------

    def _begun(self, status: Status) -> ResponseView:
        return ResponseView.begun(self._asked, self._job, status)

    @property
    def _item_id(self) -> str:
        return openai_ids.shown(Prefix.MESSAGE, self._job.id)

    def _of_response(self, number: int, kind: str, view: ResponseView) -> Iterator[Event]:
        return self._event(number, kind, response=view.model_dump(mode="json"))

    def _of_item(self, number: int, kind: str, **fields: Any) -> Iterator[Event]:
        return self._event(number, kind, output_index=0, **fields)

    def _of_part(self, number: int, kind: str, **fields: Any) -> Iterator[Event]:
        return self._of_item(number, kind, item_id=self._item_id, content_index=0, **fields)

    def _event(self, number: int, kind: str, **fields: Any) -> Iterator[Event]:
        if number > self._last:
            self._last = number
            yield {"type": f"response.{kind}", "sequence_number": number, **fields}

    def _unless_got(self, number: int, code: str, message: str) -> Iterator[Event]:
        if number > self._last:
            yield self._error(number, code, message)

    def _error(self, number: int, code: str, message: str) -> Event:
        self._last, self.over = number, True
        return {
            "type": "error",
            "sequence_number": number,
            "code": code,
            "message": message,
            "param": None,
        }
