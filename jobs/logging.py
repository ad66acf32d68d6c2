"""Logging: structlog's events and the libraries' own lines as one stream, never with a message's contents."""

import logging
import sys
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, TextIO

import structlog

# What Celery and kombu say of a message that they cannot use, with the message itself. Here it ends
# before the first placeholder.
_DUMPS = (
    "Received and deleted unknown message",
    "Received unregistered task of type",
    "Received invalid task message",
    "Can't decode message body",
    "Could not restore message",
    "Cannot process event on channel",
)

# Their debugging lines show arguments, and a line for each message is one too many.
_LEAST_LEVELS = {"celery": logging.INFO, "kombu": logging.INFO, "celery.worker.strategy": logging.WARNING}


class _Reticence(logging.Filter):
    """Cuts from the libraries' lines what came out of a message."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith(_DUMPS):
            kind = record.exc_info[0] if isinstance(record.exc_info, tuple) else None
            said = text.partition("%")[0].partition("\n")[0].rstrip(" :")
            record.msg = f"{said} ({kind.__name__})" if kind else said
            record.args, record.exc_info, record.exc_text = (), None, None
        return True


def _bare_traceback(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Render an exception as its type and where it was raised: its words may quote a prompt or a row."""
    info = event.pop("exc_info", None)
    error = info[1] if isinstance(info, tuple) else info if info is not True else sys.exc_info()[1]
    causes = []
    while isinstance(error, BaseException):
        where = "".join(traceback.format_tb(error.__traceback__))
        causes.append(f"{where}{type(error).__module__}.{type(error).__qualname__}")
        error = error.__cause__ or error.__context__
    if causes:
        event["exception"] = "\ncaused by:\n".join(causes)
    return event


class _Lines:
    """Writes our own lines: through the standard library's loggers each would cost four times as much."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write one line; as there, no log that cannot be written (a full disk) ends the work it tells of."""
        with suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = msg


def configure(level: str = "INFO", *, json_lines: bool | None = None, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error): JSON lines, or plain text where it is a terminal."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    plain = json_lines if json_lines is not None else not stream.isatty()
    rendering = [
        _bare_traceback,
        structlog.processors.JSONRenderer() if plain else structlog.dev.ConsoleRenderer(),
    ]
    handler = logging.StreamHandler(stream)
    handler.addFilter(_Reticence())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name, least in _LEAST_LEVELS.items():
        logging.getLogger(name).setLevel(max(least, logging.getLogger().level))
    structlog.configure(
        processors=[*shared, *rendering],
        logger_factory=lambda *_names: _Lines(stream),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
