"""The routes of files: upload, list, retrieve, read, delete."""

import uuid
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field
from sqlalchemy import Connection, Engine
from starlette.formparsers import MultiPartException, MultiPartParser

from jobs.domain import openai_ids
from jobs.domain.openai_ids import Prefix
from jobs.store import files as store
from jobs.store.files import PART_BYTES, File
from jobs.store.tenants import Tenant
from producer.api import bounded
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Services, Shared
from producer.openai.files import (
    MAX_FILE_BYTES,
    DeletedFile,
    FileView,
    Upload,
    not_found,
    upload_of,
)
from producer.openai.pages import Listing, Page
from producer.refusals import Code, Refusal

router = APIRouter(tags=["files"])

_FRAMING_BYTES = 65_536  # what a form adds to its file
_UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"type": "string", "enum": ["batch"]},
                        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
                        "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2592000},
                    },
                }
            }
        },
    }
}


@router.post("/v1/files", openapi_extra=_UPLOAD_BODY, responses=responses(400, 413, 422))
async def create_file(request: Request, tenant: CurrentTenant, services: Shared) -> FileView:
    """Upload a file of up to 200 MiB for a batch."""
    parser = MultiPartParser(
        request.headers,
        bounded.stream(request, MAX_FILE_BYTES + _FRAMING_BYTES),
        max_files=1,
        max_fields=8,
        max_part_size=1_024,
    )
    try:
        if "multipart/form-data" not in request.headers.get("content-type", ""):
            raise MultiPartException("The body is no multipart/form-data.")
        form = await parser.parse()
    except MultiPartException as error:
        raise Refusal(Code.INVALID_FORM, error.message, remedy="Send one multipart form.") from None
    try:
        file = await services.run_long(_store, services.engine, tenant, upload_of(form))
    finally:
        await form.close()
    return FileView.of(file)


def _store(engine: Engine, tenant: Tenant, upload: Upload) -> File:
    """Copy the temporary file into the database, in one transaction that no slow client holds open."""
    with engine.begin() as connection:
        writer = store.Writer(connection, tenant.id, upload.filename, upload.purpose, upload.expires_s)
        while data := upload.content.file.read(PART_BYTES):
            writer.write(data)
        return writer.close()


class Files(Listing):
    """Which files a list shows."""

    limit: int = Field(default=10_000, ge=1, le=10_000)
    order: Literal["asc", "desc"] = Field(default="desc", description="By time of creation.")
    purpose: str | None = None


@router.get("/v1/files", responses=responses(404, 422))
async def list_files(
    query: Annotated[Files, Query()], tenant: CurrentTenant, services: Shared
) -> Page[FileView]:
    """The tenant's files."""
    found = await services.transact(
        store.listing,
        tenant.id,
        query.limit + 1,
        after=_own(query.after, "after") if query.after else None,
        purpose=query.purpose,
        newest_first=query.order == "desc",
    )
    return Page[FileView].of([FileView.of(file) for file in found], query.limit)


@router.get("/v1/files/{file_id}", responses=responses(404))
async def retrieve_file(file_id: str, tenant: CurrentTenant, services: Shared) -> FileView:
    """A file without its content."""
    return FileView.of(await services.transact(_found, tenant.id, file_id))


@router.get(
    "/v1/files/{file_id}/content",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"application/octet-stream": {}}, "description": "The file's bytes"},
        **responses(404),
    },
)
async def file_content(file_id: str, tenant: CurrentTenant, services: Shared) -> StreamingResponse:
    """A file's content."""
    file = await services.transact(_found, tenant.id, file_id)
    return StreamingResponse(
        _pieces(services, file),
        media_type="application/octet-stream",
        headers={"Content-Length": str(file.bytes)},
    )


async def _pieces(services: Services, file: File) -> AsyncIterator[bytes]:
    """The pieces, each asked for once the one before was sent: no connection to the database waits."""
    for number in range(-(-file.bytes // PART_BYTES)):
        piece = await services.transact(store.part, file.id, number)
        if piece is None:  # deleted meanwhile: the connection breaks, so that nobody takes it for whole
            raise not_found()
        yield piece


@router.delete("/v1/files/{file_id}", responses=responses(404))
async def delete_file(file_id: str, tenant: CurrentTenant, services: Shared) -> DeletedFile:
    """Delete a file. A batch that was made from it goes on once it is validated."""
    if not await services.transact(store.delete, tenant.id, _own(file_id)):
        raise not_found()
    return DeletedFile(id=file_id)


def _found(connection: Connection, tenant_id: uuid.UUID, file_id: str) -> File:
    file = store.get(connection, tenant_id, _own(file_id))
    if file is None:
        raise not_found()
    return file


def _own(file_id: str, field: str = "file_id") -> uuid.UUID:
    own = openai_ids.own(Prefix.FILE, file_id)
    if own is None:
        raise not_found(field)
    return own
