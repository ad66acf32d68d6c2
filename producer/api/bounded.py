"""Reads a request's body no further than its limit."""

from collections.abc import AsyncGenerator

from fastapi import Request

from producer.refusals import Code, Refusal


async def stream(request: Request, limit: int) -> AsyncGenerator[bytes, None]:
    """The body as it comes. Raises `Refusal` as soon as it passes `limit` bytes."""
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise Refusal(Code.BODY_TOO_LARGE, "The body is larger than the limit in bytes", limit=limit)
        yield chunk


async def whole(request: Request, limit: int) -> bytes:
    """The whole body. Raises `Refusal` as soon as it passes `limit` bytes."""
    return b"".join([chunk async for chunk in stream(request, limit)])
