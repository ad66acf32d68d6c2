"""Moves batches on: turns lines into jobs, watches and cancels these, and writes the files at the end."""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import structlog
from sqlalchemy import Connection, Engine

from jobs import live
from jobs.broker import Announcer
from jobs.domain.jobs import Job, NewJob, Status
from jobs.domain.jsonl import Line, lines
from jobs.store import batch_steps, files, intake
from jobs.store.batch_steps import BatchLine, OpenBatch
from jobs.store.batches import BatchStatus
from jobs.store.engine import is_away

_CHUNK_LINES, _CHUNK_BYTES = 500, 2**20
_PAGE_LINES = 200  # an answer may be some hundred kilobytes

# Why a line that was not carried out was not, by its job's status.
_UNDONE = {
    Status.EXPIRED: ("batch_expired", "The completion window ended before this request was done."),
    Status.CANCELLED: ("batch_cancelled", "The batch was cancelled before this request was done."),
}
_TOKENS = ("prompt_tokens", "cached_tokens", "output_tokens")
_LOST = ("request_lost", "This request's job was deleted or started anew before the batch ended.")

log = structlog.get_logger()


class LineCheck(Protocol):
    """Checks the lines of one batch in order. `model` and `total` are of what it has seen.

    Once `done`, it need not see the rest.
    """

    model: str | None
    total: int
    done: bool

    def jobs(self, lines: Sequence[Line]) -> list[tuple[int, str, NewJob]]:
        """The jobs of the next lines that are right, each with its line and its `custom_id`."""
        ...

    def errors(self) -> Mapping[str, Any] | None:
        """What is wrong with the lines so far, as it is shown; None where nothing is."""
        ...


class BatchFormat(Protocol):
    """What lines ask and are answered; it comes from the side that knows the API."""

    most_line_bytes: int

    def check(self, batch: OpenBatch) -> LineCheck:
        """A check for the lines of a batch."""
        ...

    def answer(self, endpoint: str, job: Job, result: Mapping[str, Any] | None) -> tuple[int, dict[str, Any]]:
        """The HTTP status and the body that answer a job, which succeeded or failed."""
        ...

    def crashed(self) -> Mapping[str, Any]:
        """The errors of a batch whose check met a bug."""
        ...


class Stopped(Exception):
    """The process ends; what was not committed is done again by the next."""


class Batches:
    """Takes every batch a step further at each call. Where one stands is in the database alone."""

    def __init__(
        self, engine: Engine, announcer: Announcer, format: BatchFormat, stopping: Callable[[], bool]
    ) -> None:
        """`stopping` tells, amid long work, whether it is to be given up."""
        self._engine, self._announcer, self._format, self._stopping = engine, announcer, format, stopping
        self._open_from: dict[uuid.UUID, int] = {}  # all lines before have ended
        self._steps = {
            BatchStatus.VALIDATING: self._check,
            BatchStatus.IN_PROGRESS: self._watch,
            BatchStatus.FINALIZING: self._write,
            BatchStatus.CANCELLING: self._cancel,
        }

    def step(self) -> None:
        """Move each batch on as far as it goes now. Raises what tells that the database is away."""
        with self._engine.begin() as connection:
            open_batches = batch_steps.unfinished(connection)
        for batch in open_batches:
            try:
                self._steps[batch.status](batch)
            except Stopped:
                return
            except Exception as error:  # One batch that meets a bug must not hold the others up.
                if is_away(error):
                    raise
                log.error("batch.step_failed", batch_id=str(batch.id), error=type(error).__name__)
                if batch.status is BatchStatus.VALIDATING:
                    self._fail(batch, self._format.crashed())

    def _check(self, batch: OpenBatch) -> None:
        """Store the jobs of all lines, or none of them where one line is wrong.

        While the database takes one stretch of lines, the next is checked.
        """
        check = self._format.check(batch)
        stored: Future[None] | None = None
        # Rolled back unless it is committed, and only when nobody uses it any more.
        with self._engine.connect() as connection, ThreadPoolExecutor(1, "batch-copy") as copying:
            for chunk in _chunks(lines(self._pieces(batch), self._format.most_line_bytes)):
                found = check.jobs(chunk)
                if stored:
                    stored.result()
                if check.errors() is None:
                    stored = copying.submit(_store, connection, batch, found)
                if check.done:
                    break
                if self._stopping():
                    raise Stopped
            if stored:
                stored.result()
            errors = check.errors()
            if errors is None and batch_steps.start(connection, batch.id, check.model, check.total):
                connection.commit()
                log.info("batch.started", batch_id=str(batch.id), lines=check.total)
        if errors is not None:
            self._fail(batch, errors)

    def _pieces(self, batch: OpenBatch) -> Iterator[bytes]:
        """The input file, on a connection beside the one that stores."""
        with self._engine.begin() as connection:
            yield from files.pieces(connection, batch.input_file_id)

    def _fail(self, batch: OpenBatch, errors: Mapping[str, Any]) -> None:
        with self._engine.begin() as connection:
            batch_steps.fail(connection, batch.id, errors)
        log.info("batch.failed", batch_id=str(batch.id), errors=errors["total"])

    def _watch(self, batch: OpenBatch) -> None:
        """Where all jobs have ended, write the files."""
        with self._engine.begin() as connection:
            before = self._open_from.get(batch.id, 0)
            line = batch_steps.first_open(connection, batch.id, before)
            # A failed job before that line may have been redriven meanwhile.
            if line is None and before:
                line = batch_steps.first_open(connection, batch.id, 0)
            if line is not None:
                self._open_from[batch.id] = line
                return
            self._open_from.pop(batch.id, None)
            if not batch_steps.finalize(connection, batch.id):
                return
        self._write(batch)

    def _cancel(self, batch: OpenBatch) -> None:
        self._open_from.pop(batch.id, None)
        while True:
            with self._engine.begin() as connection:
                cancelled = batch_steps.cancel_jobs(connection, batch.id)
            if not cancelled:
                break
            self._announcer.publish(_hints(cancelled))
            if self._stopping():
                raise Stopped
        self._write(batch)

    def _write(self, batch: OpenBatch) -> None:
        """Write the output and the error file and end the batch, in one transaction: all of it or nothing."""
        with self._engine.begin() as connection:
            output = _Lazy(connection, batch, "output")
            errors = _Lazy(connection, batch, "error")
            counts, usage = Counter[str](), dict.fromkeys(_TOKENS, 0)
            for line in self._lines(connection, batch):
                succeeded, record = self._record(batch.endpoint, line)
                (output if succeeded else errors).write(record)
                counts[line.job.status if line.job else "lost"] += 1
                _add(usage, line.result)
            status = BatchStatus.EXPIRED if counts[Status.EXPIRED] else BatchStatus.COMPLETED
            if batch.status is BatchStatus.CANCELLING:
                status = BatchStatus.CANCELLED
            completed = counts[Status.SUCCEEDED]
            ended = batch_steps.end(
                connection,
                batch.id,
                status,
                output_file_id=output.close(),
                error_file_id=errors.close(),
                completed=completed,
                failed=counts.total() - completed,
                usage=usage,
            )
            if not ended:
                raise RuntimeError(f"batch {batch.id} was ended by another process")
        log.info("batch.ended", batch_id=str(batch.id), status=status.value, lines=counts.total())

    def _lines(self, connection: Connection, batch: OpenBatch) -> Iterator[BatchLine]:
        after = 0
        while page := batch_steps.lines(connection, batch.id, after, _PAGE_LINES):
            yield from page
            after = page[-1].line
            if self._stopping():
                raise Stopped

    def _record(self, endpoint: str, line: BatchLine) -> tuple[bool, dict[str, Any]]:
        """Whether the line belongs into the output file, and what is written of it."""
        job = line.job
        record: dict[str, Any] = {
            "id": f"batch_req_{job.id.hex}" if job else None,
            "custom_id": line.custom_id,
            "response": None,
            "error": None,
        }
        if job is None or job.status not in (Status.SUCCEEDED, Status.FAILED):
            code, message = _UNDONE.get(job.status, _LOST) if job else _LOST
            record["error"] = {"code": code, "message": message}
            return False, record
        status_code, body = self._format.answer(endpoint, job, line.result)
        record["response"] = {"status_code": status_code, "request_id": f"req_{job.id.hex}", "body": body}
        return job.status is Status.SUCCEEDED, record


class _Lazy:
    """A file of JSON lines that is made with its first line."""

    def __init__(self, connection: Connection, batch: OpenBatch, kind: str) -> None:
        self._connection, self._batch, self._kind = connection, batch, kind
        self._writer: files.Writer | None = None

    def write(self, record: Mapping[str, Any]) -> None:
        batch = self._batch
        if self._writer is None:
            self._writer = files.Writer(
                self._connection,
                batch.tenant_id,
                f"batch_{batch.id.hex}_{self._kind}.jsonl",
                "batch_output",
                batch.output_expires_s,
            )
        self._writer.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def close(self) -> uuid.UUID | None:
        """The file's id; None where it has no line."""
        return self._writer.close().id if self._writer else None


def _store(connection: Connection, batch: OpenBatch, found: Sequence[tuple[int, str, NewJob]]) -> None:
    intake.insert_many(connection, [job for _, _, job in found])
    batch_steps.add_items(connection, batch.id, [(line, custom_id, job.id) for line, custom_id, job in found])


def _add(usage: dict[str, int], result: Mapping[str, Any] | None) -> None:
    if result is not None:
        for name in _TOKENS:
            usage[name] += result[name]


def _hints(cancelled: Iterable[tuple[uuid.UUID, bool]]) -> Iterator[tuple[str, str]]:
    """What tells workers to free the places of cancelled jobs, and who waits that they have ended."""
    for job_id, ran in cancelled:
        yield live.channel(str(job_id)), live.to_message(live.ENDED)
        if ran:
            yield live.CANCEL_CHANNEL, str(job_id)


def _chunks(given: Iterable[Line]) -> Iterator[list[Line]]:
    chunk: list[Line] = []
    size = 0
    for line in given:
        chunk.append(line)
        size += len(line.data or b"")
        if len(chunk) == _CHUNK_LINES or size >= _CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
