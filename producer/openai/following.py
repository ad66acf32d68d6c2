"""Follows a job's text from its beginning: live from Redis, and from the stored answer once it has ended."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError

from jobs import live
from jobs.domain.jobs import Job, Status
from jobs.live import Event, LiveEvent
from jobs.store import reads
from jobs.store.reads import JobDetail
from producer.api.hub import Signal
from producer.api.services import Services
from producer.refusals import Code, Refusal

HEARTBEAT_S = 15.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Running:
    """An attempt is under way."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of an attempt that begins at the character `start` of its answer."""

    attempt: int
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing came for `HEARTBEAT_S`; the stream goes on."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The API stops; the job goes on, and another stream can go on with it."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The job has ended. `detail` is None where it, or its text, was deleted meanwhile.

    `attempt` is that of its answer, or the last one. All pieces of the answer came before.
    """

    detail: JobDetail | None
    attempt: int


Progress = Running | Piece | Quiet | Closing | Ended


async def follow(services: Services, job: Job) -> AsyncGenerator[Progress, None]:
    """The job's progress from its beginning until it has ended, whatever its state, which `job` showed.

    Pieces of one attempt follow each other without a gap or an overlap. Pieces of a later attempt begin at 0
    again. A database that is away is waited for.
    """
    text = _Text(job.attempt + (job.status is Status.QUEUED))
    ended = job.status.terminal
    if job.status is Status.RUNNING:
        yield Running(job.attempt)
    async with services.hub.listening(str(job.id)) as listener:
        while True:
            if ended and (end := await _end(services, job, text)) is not None:
                for progress in end:
                    yield progress
                return
            item = await listener.get(HEARTBEAT_S)
            if item is Signal.CLOSE:
                yield Closing()
                return
            if item is None:
                yield Quiet()
                continue
            events = (
                [item]
                if isinstance(item, Event)
                else await services.hub.backlog(str(job.id), text.last_id, listener)
            )
            for progress in text.take(events):
                yield progress
            # Who may have missed events may have missed the end.
            ended = item is Signal.LOOK or live.ENDED in events


async def end_of(services: Services, job: Job) -> Ended:
    """How the job ends, once it has. Raises `Refusal` where the API stops before."""
    async with aclosing(follow(services, job)) as progress:
        async for one in progress:
            if isinstance(one, Ended):
                return one
    raise Refusal(Code.NOT_READY, "The API is stopping", remedy="Try again in a moment.")


class _Text:
    """The text so far, of the newest attempt; what came of those before `least` is void."""

    def __init__(self, least: int) -> None:
        self.attempt, self._least = 0, least
        self.text = ""
        self.last_id: str | None = None

    def take(self, events: Sequence[Event]) -> list[Progress]:
        """What is new in these events; those that were taken before are passed over."""
        new = [event for event in events if event.id and live.order(event.id) > live.order(self.last_id)]
        self._least = max([self._least, *(live.order(event.id)[0] for event in new)])
        found: list[Progress] = []
        for event in new:
            self.last_id = event.id
            attempt = live.order(event.id)[0]
            if attempt < self._least:
                continue
            if attempt != self.attempt:
                self.attempt, self.text = attempt, ""
                found.append(Running(attempt))
            if event.event is LiveEvent.TEXT:
                found.append(self._add(event.data["text"]))
            elif event.event is LiveEvent.SNAPSHOT and event.data["text"].startswith(self.text):
                found.append(self._add(event.data["text"][len(self.text) :]))
        return [one for one in found if not isinstance(one, Piece) or one.text]

    def rest(self, answer: str, attempt: int) -> Piece | None:
        """What is missing of the stored answer."""
        if attempt != self.attempt:
            self.attempt, self.text = attempt, ""
        missing = answer[len(self.text) :] if answer.startswith(self.text) else ""
        return self._add(missing) if missing else None

    def _add(self, piece: str) -> Piece:
        start = len(self.text)
        self.text += piece
        return Piece(self.attempt, start, piece)


async def _end(services: Services, job: Job, text: _Text) -> list[Progress] | None:
    """The rest of the answer and the end; None where the job goes on after all, or nobody can tell now."""
    try:
        detail = await services.transact(reads.detail, job.tenant_id, job.id)
    except SQLAlchemyError as error:
        log.warning("stream.end_delayed", job_id=str(job.id), error=type(error).__name__)
        return None
    if detail is None or detail.erased:
        return [Ended(None, text.attempt)]
    if not detail.job.status.terminal:
        return None
    if detail.result is None:
        return [Ended(detail, detail.job.attempt)]
    attempt = detail.result["attempt"]
    rest = text.rest(detail.result["output"], attempt)
    return [*([rest] if rest else []), Ended(detail, attempt)]
