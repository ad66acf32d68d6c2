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
    Code.INTERNAL_ERROR: 500,
    Code.DATABASE_UNAVAILABLE: 503,
    Code.NOT_READY: 503,
}
_SEE_DOCS = "GET /docs lists the paths and their methods."
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 503: {"Retry-After": "2"}}

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
    def of(cls, refusal: Refusal) -> "ErrorBody":
        """The body that tells of a refusal."""
        return cls(
            error=ErrorDetail(
                type=_type(STATUS[refusal.code]),
                code=refusal.code.value,
                message=refusal.message,
                field=refusal.field,
                param=refusal.field,
                limit=refusal.limit,
                remedy=refusal.remedy,
            )
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


def respond(refusal: Refusal, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """The response that tells of a refusal."""
    status = STATUS[refusal.code]
    return JSONResponse(
        ErrorBody.of(refusal).model_dump(), status, headers={**_HEADERS.get(status, {}), **(headers or {})}
    )


def internal_error(error: Exception) -> JSONResponse:
    """The response for a bug, which is logged by its place in the code: its text may quote a prompt."""
    log.error(
        "request.crashed",
        error=type(error).__name__,
        trace="".join(traceback.format_tb(error.__traceback__)),
    )
    return respond(
        Refusal(Code.INTERNAL_ERROR, "Something went wrong here", remedy="Report the time of day.")
    )


def install(app: FastAPI) -> None:
    """Answer every error of the app in the one shape."""
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(SQLAlchemyError, _database)


async def _refused(_request: Request, error: Exception) -> JSONResponse:
    return respond(error) if isinstance(error, Refusal) else internal_error(error)


async def _invalid(_request: Request, error: Exception) -> JSONResponse:
    # Only paths, queries and headers come here, whose name stands behind where they are.
    return (
        respond(refusal_of(error.errors(), skip=1))
        if isinstance(error, RequestValidationError)
        else internal_error(error)
    )


async def _http(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        return internal_error(error)
    if error.status_code == STATUS[Code.METHOD_NOT_ALLOWED]:
        refusal = Refusal(Code.METHOD_NOT_ALLOWED, "The path does not take this method", remedy=_SEE_DOCS)
        return respond(refusal, error.headers)
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
