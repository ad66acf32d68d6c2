"""The routes of batches: create, retrieve, list, cancel."""

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from pydantic import ValidationError
from sqlalchemy import Connection

from jobs.domain import openai_ids
from jobs.domain.openai_ids import Prefix
from jobs.store import batches as store
from jobs.store import files
from jobs.store.batches import Batch
from producer.api import bounded
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Shared
from producer.openai.batches import WINDOWS_S, BatchView, CreateBatch, not_found
from producer.openai.files import not_found as no_such_file
from producer.openai.pages import Listing, Page
from producer.prepare import Idempotency
from producer.refusals import Code, Refusal
from producer.request import decode, refusal_of

router = APIRouter(tags=["batches"])

_CREATE_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": CreateBatch.model_json_schema()}},
    }
}


@router.post("/v1/batches", openapi_extra=_CREATE_BODY, responses=responses(400, 404, 409, 413, 422))
async def create_batch(
    request: Request,
    tenant: CurrentTenant,
    services: Shared,
    idempotency_key: Annotated[str | None, Header(description="Makes a repeat safe, as for jobs.")] = None,
) -> BatchView:
    """Carry out each line of an uploaded file in the cold lane. The file is checked as a whole first."""
    body = await bounded.whole(request, services.settings.api.max_body_bytes)
    try:
        wanted = CreateBatch.model_validate(decode(body))
    except ValidationError as error:
        raise refusal_of(error.errors(include_url=False, include_input=False)) from None
    wanted.check()
    idempotency = Idempotency.of(idempotency_key, "POST /v1/batches", body)
    return BatchView.of(await services.transact(_create, tenant.id, wanted, idempotency))


def _create(
    connection: Connection, tenant_id: uuid.UUID, wanted: CreateBatch, idempotency: Idempotency | None
) -> Batch:
    """The batch, a new one or that of an earlier request with the same key."""
    batch = (
        _repeated(connection, tenant_id, idempotency)
        or _new(connection, tenant_id, wanted, idempotency)
        or _repeated(connection, tenant_id, idempotency)  # another request was first
    )
    if batch is None:
        raise RuntimeError("the batch was neither stored nor is it a repeat")
    return batch


def _repeated(connection: Connection, tenant_id: uuid.UUID, idempotency: Idempotency | None) -> Batch | None:
    held = store.of_key(connection, tenant_id, idempotency.key) if idempotency else None
    if held and idempotency and held.payload_hash != idempotency.payload_hash:
        raise Idempotency.conflict(f"batch {openai_ids.shown(Prefix.BATCH, held.id)}")
    return held


def _new(
    connection: Connection, tenant_id: uuid.UUID, wanted: CreateBatch, idempotency: Idempotency | None
) -> Batch | None:
    """A new batch; None where another holds the key."""
    file_id = openai_ids.own(Prefix.FILE, wanted.input_file_id)
    file = files.get(connection, tenant_id, file_id) if file_id else None
    if file is None:
        raise no_such_file("input_file_id")
    if file.purpose != "batch":
        raise Refusal(
            Code.INVALID_VALUE,
            "The file is not for batches",
            field="input_file_id",
            limit="batch",
            remedy="Name a file that was uploaded with purpose=batch.",
        )
    return store.create(
        connection,
        tenant_id,
        endpoint=wanted.endpoint,
        completion_window=wanted.completion_window,
        window_s=WINDOWS_S[wanted.completion_window],
        input_file_id=file.id,
        metadata=wanted.metadata,
        output_expires_s=wanted.output_expires_after.seconds if wanted.output_expires_after else None,
        idempotency_key=idempotency.key if idempotency else None,
        payload_hash=idempotency.payload_hash if idempotency else None,
    )


@router.get("/v1/batches", responses=responses(404, 422))
async def list_batches(
    query: Annotated[Listing, Query()], tenant: CurrentTenant, services: Shared
) -> Page[BatchView]:
    """The tenant's batches, newest first."""
    after = _own(query.after) if query.after else None
    found = await services.transact(store.listing, tenant.id, query.limit + 1, after)
    return Page[BatchView].of([BatchView.of(batch) for batch in found], query.limit)


@router.get("/v1/batches/{batch_id}", responses=responses(404))
async def retrieve_batch(batch_id: str, tenant: CurrentTenant, services: Shared) -> BatchView:
    """A batch as it stands now."""
    return BatchView.of(await services.transact(_found, tenant.id, _own(batch_id)))


@router.post("/v1/batches/{batch_id}/cancel", responses=responses(404, 409))
async def cancel_batch(batch_id: str, tenant: CurrentTenant, services: Shared) -> BatchView:
    """Cancel what is left of a batch; what is done is kept. It is `cancelling` until its files are there."""
    return BatchView.of(await services.transact(_cancel, tenant.id, _own(batch_id)))


def _cancel(connection: Connection, tenant_id: uuid.UUID, batch_id: uuid.UUID) -> Batch:
    moved = store.cancel(connection, tenant_id, batch_id)
    batch = _found(connection, tenant_id, batch_id)
    if not moved and batch.status not in ("cancelling", "cancelled"):
        raise Refusal(Code.BATCH_ENDED, f"The batch is {batch.status} already")
    return batch


def _found(connection: Connection, tenant_id: uuid.UUID, batch_id: uuid.UUID) -> Batch:
    batch = store.get(connection, tenant_id, batch_id)
    if batch is None:
        raise not_found()
    return batch


def _own(batch_id: str) -> uuid.UUID:
    own = openai_ids.own(Prefix.BATCH, batch_id)
    if own is None:
        raise not_found()
    return own
