"""Every HTTP status that an error is answered with, and the one shape of all errors."""

import http
import traceback
from collections.abc import Mapping
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException

from jobs.store.engine import is_away
from producer.refusals import Code, Refusal
from producer.request import refusal_of

STATUS: Mapping[Code, int] = {
    Code.INVALID_JSON: 400,
    Code.DUPLICATE_FIELD: 400,
    Code.UNSUPPORTED_PARAMETER: 400,
    Code.INVALID_FORM: 400,
    Code.DUPLICATE_CUSTOM_ID: 400,
    Code.MIXED_MODELS: 400,
    Code.TOO_MANY_LINES: 400,
    Code.WEBHOOK_TEST_FAILED: 400,
    Code.PREVIOUS_RESPONSE_NOT_FOUND: 400,
    Code.UNAUTHORIZED: 401,
    Code.NOT_FOUND: 404,
    Code.JOB_NOT_FOUND: 404,
    Code.DELIVERY_NOT_FOUND: 404,
    Code.WEBHOOK_ENDPOINT_NOT_FOUND: 404,
    Code.RESPONSE_NOT_FOUND: 404,
    Code.UNKNOWN_MODEL: 404,
    Code.FILE_NOT_FOUND: 404,
    Code.BATCH_NOT_FOUND: 404,
    Code.METHOD_NOT_ALLOWED: 405,
    Code.IDEMPOTENCY_CONFLICT: 409,
    Code.JOB_ENDED: 409,
    Code.JOB_NOT_FAILED: 409,
    Code.BATCH_ENDED: 409,
    Code.WEBHOOK_ENDPOINT_DISABLED: 409,
    Code.BODY_TOO_LARGE: 413,
    Code.PROMPT_TOO_LONG: 413,
    Code.UNKNOWN_FIELD: 422,
    Code.MISSING_FIELD: 422,
    Code.WRONG_TYPE: 422,
    Code.INVALID_VALUE: 422,
    Code.OUT_OF_RANGE: 422,
    Code.TOO_LONG: 422,
    Code.EMPTY: 422,
    Code.UNSTORABLE_TEXT: 422,
    Code.CONFLICTING_FIELDS: 422,
    Code.UNKNOWN_KIND: 422,
    Code.UNKNOWN_LANE: 422,
    Code.NOT_BEFORE_PAST_DEADLINE: 422,
    Code.WEBHOOK_TARGET_REFUSED: 422,
    Code.WEBHOOK_UNSIGNED: 422,
    Code.IDEMPOTENCY_UNSUPPORTED: 422,
    Code.RATE_LIMITED: 429,
    Code.INTERNAL_ERROR: 500,
    Code.DATABASE_UNAVAILABLE: 503,
    Code.NOT_READY: 503,
}
# How a job can end that a client waited for; all other codes tell of a fault here.
_OF_JOBS: Mapping[str, int] = {
    "prompt_too_long": 400,
    "unsupported_parameter": 400,
    "invalid_request": 400,
    "cancelled": 409,
}
# OpenAI's clients know one status for all that is wrong with a request, and these names.
_OPENAI_PATHS = tuple(
    f"/v1/{name}"
    for name in (
        "chat/",
        "responses",
        "files",
        "batches",
        "models",
        "webhook_endpoints",
        "webhook_event_types",
    )
)
_OPENAI_CODES: Mapping[str, str] = {
    Code.UNAUTHORIZED: "invalid_api_key",
    Code.UNKNOWN_MODEL: "model_not_found",
    Code.PROMPT_TOO_LONG: "context_length_exceeded",
}
_SEE_DOCS = "GET /docs lists the paths and their methods."
_NO_RETRY = {"X-Should-Retry": "false"}  # OpenAI's clients would try some of these statuses again
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 409: _NO_RETRY, 503: {"Retry-After": "2"}}

log = structlog.get_logger()


class ErrorDetail(BaseModel):
    """What is wrong, where, and what to do. OpenAI's clients read `type`, `code`, `param` and `message`."""

    type: str = Field(description="The kind of error, by OpenAI's names.", examples=["invalid_request_error"])
    code: str = Field(description="Stable: programs may rely on it.", examples=["out_of_range"])
    message: str = Field(examples=["Input should be less than or equal to 2"])
    field: str | None = Field(description="The path of the field at fault.", examples=["temperature"])
    param: str | None = Field(description="The same as `field`.", examples=["temperature"])
    limit: int | float | str | None = Field(description="What holds there.", examples=[2])
    remedy: str | None = Field(examples=["Choose a value within the limit."])


class ErrorBody(BaseModel):
    """The body of every error."""

    error: ErrorDetail

    @classmethod
    def of(cls, refusal: Refusal, *, openai: bool = False) -> "ErrorBody":
        """The body that tells of a refusal, by OpenAI's names where asked for."""
        return cls(
            error=ErrorDetail(
                type=_type(STATUS[refusal.code]),
                code=_OPENAI_CODES.get(refusal.code, refusal.code.value) if openai else refusal.code.value,
                message=refusal.message,
                field=refusal.field,
                param=refusal.field,
                limit=refusal.limit,
                remedy=refusal.remedy,
            )
        )


class JobEnded(Exception):
    """A job that an OpenAI client waited for ended without an answer. The message quotes no prompt."""

    def __init__(self, code: str, message: str) -> None:
        self.status = _OF_JOBS.get(code, 500)
        self.code, self.message = _OPENAI_CODES.get(code, code), message
        super().__init__(code)

    def body(self) -> ErrorBody:
        """What the client is told."""
        empty: dict[str, Any] = dict.fromkeys(("field", "param", "limit", "remedy"))
        return ErrorBody(
            error=ErrorDetail(type=_type(self.status), code=self.code, message=self.message, **empty)
        )


def _type(status: int) -> str:
    """OpenAI's name for the kind of error that a status tells of."""
    known = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return known.get(status, "server_error" if status >= 500 else "invalid_request_error")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, for its documentation; 401 and 503 can come from every one."""
    return {
        status: {"model": ErrorBody, "description": http.HTTPStatus(status).phrase}
        for status in sorted({401, 503, *statuses})
    }


def is_openai(path: str) -> bool:
    """Whether OpenAI's clients call this path."""
    return path.startswith(_OPENAI_PATHS)


def document(paths: Mapping[str, Any]) -> None:
    """Put right in the API's document what OpenAI's paths answer for a wrong request."""
    for path, operations in paths.items():
        for operation in operations.values() if is_openai(path) else ():
            answers = operation["responses"]
            answers.pop("422", None)
            answers.setdefault("400", {**answers["401"], "description": http.HTTPStatus(400).phrase})


def respond(refusal: Refusal, path: str = "", headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response that tells of a refusal, in the way of those who call this path."""
    status, openai = STATUS[refusal.code], is_openai(path)
    if openai and (status == 422 or refusal.code is Code.PROMPT_TOO_LONG):
        status = 400
    body = ErrorBody.of(refusal, openai=openai).model_dump()
    return JSONResponse(body, status, headers={**_HEADERS.get(status, {}), **(headers or {})})


def internal_error(error: Exception) -> JSONResponse:
    """The response for a bug, which is logged by its place in the code: its text may quote a prompt."""
    log.error(
        "request.crashed",
        error=type(error).__name__,
        trace="".join(traceback.format_tb(error.__traceback__)),
    )
    return respond(
        Refusal(Code.INTERNAL_ERROR, "Something went wrong here", remedy="Report the answer's x-request-id.")
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app in the one shape."""
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(SQLAlchemyError, _database)
    app.add_exception_handler(JobEnded, _job_ended)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    return respond(error, request.url.path) if isinstance(error, Refusal) else internal_error(error)


async def _job_ended(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, JobEnded):
        return internal_error(error)
    return JSONResponse(error.body().model_dump(), error.status, headers=_NO_RETRY)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    # Only paths, queries and headers come here, whose name stands behind where they are.
    return (
        respond(refusal_of(error.errors(), skip=1), request.url.path)
        if isinstance(error, RequestValidationError)
        else internal_error(error)
    )


async def _http(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return internal_error(error)
    if error.status_code == STATUS[Code.METHOD_NOT_ALLOWED]:
        refusal = Refusal(Code.METHOD_NOT_ALLOWED, "The path does not take this method", remedy=_SEE_DOCS)
        return respond(refusal, headers=error.headers)
    return respond(Refusal(Code.NOT_FOUND, "No such path", remedy=_SEE_DOCS))


async def _database(_request: Request, error: Exception) -> JSONResponse:
    if not is_away(error):
        return internal_error(error)
    cause = getattr(error, "orig", None) or error
    log.warning("database.unreachable", error=type(cause).__name__)
    return respond(
        Refusal(
            Code.DATABASE_UNAVAILABLE,
            "The database does not answer",
            remedy="Try again in a moment, with the same Idempotency-Key.",
        )
    )
