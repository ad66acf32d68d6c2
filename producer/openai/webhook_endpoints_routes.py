"""The routes of webhook endpoints: create, list, change, rotate, test, delete; their deliveries."""

import asyncio
import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from jobs.domain.events import EndpointEvent
from jobs.store import endpoint_deliveries, endpoint_events
from jobs.store import endpoints as store
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Shared
from producer.openai.json_bodies import read, takes
from producer.openai.pages import Listing, Page
from producer.openai.webhook_endpoints import (
    MOST_ENDPOINTS,
    CreateEndpoint,
    DeletedEndpoint,
    EndpointView,
    EndpointWithSecret,
    EventTypeList,
    RotateSecret,
    SampleAnswer,
    SendSample,
    UpdateEndpoint,
    check_target,
    found,
    new_secret,
    not_found,
    own_id,
)
from producer.refusals import Code, Refusal

router = APIRouter(tags=["webhook endpoints"])

_SAMPLE_LOOK_S = 0.2
_SAMPLE_MARGIN_S = 5.0  # beyond an attempt's own limit: for the control process to take and settle it


@router.get("/v1/webhook_event_types", responses=responses())
async def list_webhook_event_types(tenant: CurrentTenant) -> EventTypeList:
    """The events that an endpoint may ask for."""
    return EventTypeList()


@router.post("/v1/webhook_endpoints", openapi_extra=takes(CreateEndpoint), responses=responses(400, 413, 422))
async def create_webhook_endpoint(
    request: Request, tenant: CurrentTenant, services: Shared
) -> EndpointWithSecret:
    """Have events of background responses and of batches sent somewhere; the secret is shown only now."""
    wanted = await read(request, services, CreateEndpoint)
    await services.run(check_target, wanted.url, services.settings)
    secret, sealed, hint = new_secret(services.settings)
    made = await services.transact(
        store.create, tenant.id, **dict(wanted), secret=sealed, secret_hint=hint, most=MOST_ENDPOINTS
    )
    if made is None:
        raise Refusal(
            Code.OUT_OF_RANGE,
            "There are as many webhook endpoints as there may be",
            limit=MOST_ENDPOINTS,
            remedy="Delete one.",
        )
    return EndpointWithSecret.of(made, signing_secret=secret)


@router.get("/v1/webhook_endpoints", responses=responses(404, 422))
async def list_webhook_endpoints(
    query: Annotated[Listing, Query()], tenant: CurrentTenant, services: Shared
) -> Page[EndpointView]:
    """The tenant's endpoints, newest first."""
    after = own_id(query.after) if query.after else None
    endpoints = await services.transact(store.listing, tenant.id, query.limit + 1, after)
    return Page[EndpointView].of([EndpointView.of(endpoint) for endpoint in endpoints], query.limit)


@router.get("/v1/webhook_endpoints/{webhook_endpoint_id}", responses=responses(404))
async def retrieve_webhook_endpoint(
    webhook_endpoint_id: str, tenant: CurrentTenant, services: Shared
) -> EndpointView:
    """An endpoint as it stands now."""
    return EndpointView.of(await services.transact(found, tenant.id, webhook_endpoint_id))


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}",
    openapi_extra=takes(UpdateEndpoint),
    responses=responses(400, 404, 413, 422),
)
async def update_webhook_endpoint(
    webhook_endpoint_id: str, request: Request, tenant: CurrentTenant, services: Shared
) -> EndpointView:
    """Change an endpoint, and enable it again if it was disabled. What still waits goes to the new URL."""
    wanted = await read(request, services, UpdateEndpoint)
    if wanted.url is not None:
        await services.run(check_target, wanted.url, services.settings)
    changed = await services.transact(store.update, tenant.id, own_id(webhook_endpoint_id), **dict(wanted))
    if changed is None:
        raise not_found()
    return EndpointView.of(changed)


@router.delete("/v1/webhook_endpoints/{webhook_endpoint_id}", responses=responses(404))
async def delete_webhook_endpoint(
    webhook_endpoint_id: str, tenant: CurrentTenant, services: Shared
) -> DeletedEndpoint:
    """Delete an endpoint; what still waits for it is not sent."""
    if not await services.transact(store.delete, tenant.id, own_id(webhook_endpoint_id)):
        raise not_found()
    return DeletedEndpoint(id=webhook_endpoint_id)


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    openapi_extra=takes(RotateSecret),
    responses=responses(400, 404, 413, 422),
)
async def rotate_webhook_endpoint_secret(
    webhook_endpoint_id: str, request: Request, tenant: CurrentTenant, services: Shared
) -> EndpointWithSecret:
    """Sign with a new secret from now on; it is shown only now."""
    wanted = await read(request, services, RotateSecret)
    secret, sealed, hint = new_secret(services.settings)
    rotated = await services.transact(
        store.rotate,
        tenant.id,
        own_id(webhook_endpoint_id),
        secret=sealed,
        secret_hint=hint,
        keep_old=wanted.keep_old_secret_active_for_24_hours,
    )
    if rotated is None:
        raise not_found()
    return EndpointWithSecret.of(rotated, signing_secret=secret)


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/test",
    openapi_extra=takes(SendSample),
    responses=responses(400, 404, 413, 422),
)
async def test_webhook_endpoint(
    webhook_endpoint_id: str, request: Request, tenant: CurrentTenant, services: Shared
) -> SampleAnswer:
    """Have the control process send one sample, whatever the endpoint asks for, and tell the answer."""
    wanted = await read(request, services, SendSample)
    sample = await services.transact(_sample, tenant.id, webhook_endpoint_id, wanted.event_type)
    until = time.monotonic() + services.settings.webhooks.timeout_s + _SAMPLE_MARGIN_S
    log: list[dict[str, Any]] = []
    while not log and time.monotonic() < until:
        await asyncio.sleep(_SAMPLE_LOOK_S)
        delivery = await services.transact(endpoint_deliveries.one, *sample)
        log = delivery["attempt_log"] if delivery else []
    if not log or log[-1]["status_code"] is None:
        why = log[-1]["error"] if log else "no control process has sent it"
        raise Refusal(
            Code.WEBHOOK_TEST_FAILED,
            f"The endpoint could not be asked: {why}",
            field="webhook_endpoint_id",
            remedy="See that the URL is right and its server runs.",
        )
    return SampleAnswer(
        webhook_endpoint_id=webhook_endpoint_id,
        event_type=wanted.event_type,
        status_code=log[-1]["status_code"],
    )


def _sample(
    connection: Connection, tenant_id: uuid.UUID, endpoint_id: str, event: EndpointEvent
) -> tuple[uuid.UUID, uuid.UUID]:
    endpoint = found(connection, tenant_id, endpoint_id, hold=True)
    return endpoint.id, endpoint_events.sample(connection, tenant_id, endpoint.id, endpoint.url, event)
