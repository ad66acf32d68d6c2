"""Logging: structlog's events and the libraries' own lines as one stream, never with a message's contents."""

import logging
import sys
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


def configure(level: str = "INFO", *, json_lines: bool | None = None, stream: TextIO | None = None) -> None:
    """Send all logs to `stream` (standard error): JSON lines, or plain text where it is a terminal."""
    stream = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[Any]
    # Plain tracebacks: the pretty ones print local variables, prompts among them.
    if json_lines if json_lines is not None else not stream.isatty():
        rendering = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        rendering = [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
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
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
