"""The log: one form for all lines, and no contents of messages or of local variables."""

import io
import json
import logging

import pytest
import structlog
from structlog.testing import capture_logs

from jobs.logging import configure


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


def test_structlog_and_libraries_write_the_same_lines(stream: io.StringIO) -> None:
    configure(stream=stream)
    structlog.get_logger().info("job.claimed", job_id="1")
    logging.getLogger("kombu").warning("lost %s", "it")
    logging.getLogger("celery.worker.strategy").info("Task received")
    ours, theirs = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert (ours["event"], ours["job_id"], ours["level"]) == ("job.claimed", "1", "info")
    assert (theirs["event"], theirs["logger"], theirs["level"]) == ("lost it", "kombu", "warning")


@pytest.mark.parametrize("json_lines", [True, False])
def test_an_exception_is_told_without_its_words(stream: io.StringIO, json_lines: bool) -> None:
    configure(stream=stream, json_lines=json_lines)
    words = "canary".upper()  # so that no line of source has them
    try:
        try:
            raise KeyError(words)
        except KeyError as error:
            raise ValueError(words) from error
    except ValueError as error:
        structlog.get_logger().error("job.failed", exc_info=error)
        logging.getLogger("celery").exception("task failed")
    told = stream.getvalue()
    for part in ("builtins.ValueError", "builtins.KeyError", "caused by"):
        assert told.count(part) == 2, part
    assert told.count("test_logging.py") == 4
    assert "CANARY" not in told


@pytest.mark.parametrize("json_lines", [True, False])
def test_a_traceback_shows_no_variables(stream: io.StringIO, json_lines: bool) -> None:
    configure(stream=stream, json_lines=json_lines)
    prompt = "a secret prompt".upper()
    try:
        _ = 1 / len(prompt[:0])
    except ZeroDivisionError:
        structlog.get_logger().exception("job.failed")
        logging.getLogger("celery").exception("task failed")
    assert stream.getvalue().count("ZeroDivisionError") == 2
    assert prompt not in stream.getvalue()


@pytest.mark.parametrize(
    ("line", "args", "said"),
    [
        ("Can't decode message body: %r [type:%r]", ("PROMPT", "PROMPT"), "Can't decode message body"),
        ("Received unregistered task of type %s.\n%s", ("x", "PROMPT"), "Received unregistered task of type"),
        ("Could not restore message: %r", ("PROMPT",), "Could not restore message"),
    ],
)
def test_contents_of_messages_are_cut(
    stream: io.StringIO, line: str, args: tuple[str, ...], said: str
) -> None:
    configure(stream=stream)
    try:
        raise ValueError("PROMPT")
    except ValueError:
        logging.getLogger("celery.worker").error(line, *args, exc_info=True)
    (record,) = [json.loads(row) for row in stream.getvalue().splitlines()]
    assert record["event"] == f"{said} (ValueError)"
    assert "PROMPT" not in stream.getvalue()


def test_a_logger_that_was_used_before_follows_the_configuration(stream: io.StringIO) -> None:
    log = structlog.get_logger()
    configure(stream=stream)
    log.info("before")
    structlog.reset_defaults()
    with capture_logs() as logs:
        log.info("after")
    assert [line["event"] for line in logs] == ["after"]
    assert "after" not in stream.getvalue()
