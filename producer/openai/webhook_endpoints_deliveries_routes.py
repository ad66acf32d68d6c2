"""The routes of a webhook endpoint's deliveries, which are ours: what was sent, and sending it again."""

import uuid
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from sqlalchemy import Connection

from jobs.store import endpoint_deliveries as store
from jobs.store.endpoints import Endpoint
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Shared
from producer.openai.json_bodies import read, takes
from producer.openai.pages import Listing, Page
from producer.openai.webhook_endpoints import (
    EndpointDelivery,
    Redelivered,
    Redelivery,
    found,
)
from producer.refusals import Code, Refusal

router = APIRouter(tags=["webhook endpoints"])


class DeliveryListing(Listing):
    """Which deliveries a list shows."""

    status: Literal["pending", "delivered", "failed"] | None = None


@router.get("/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries", responses=responses(404, 422))
async def webhook_endpoint_deliveries(
    webhook_endpoint_id: str,
    query: Annotated[DeliveryListing, Query()],
    tenant: CurrentTenant,
    services: Shared,
) -> Page[EndpointDelivery]:
    """What was sent to an endpoint, with each attempt; newest first."""
    after = _delivery_id(query.after) if query.after else None
    deliveries = await services.transact(
        _deliveries, tenant.id, webhook_endpoint_id, query.limit + 1, after, query.status
    )
    return Page[EndpointDelivery].of(deliveries, query.limit)


def _deliveries(
    connection: Connection,
    tenant_id: uuid.UUID,
    endpoint_id: str,
    limit: int,
    after: uuid.UUID | None,
    status: str | None,
) -> list[EndpointDelivery]:
    endpoint = found(connection, tenant_id, endpoint_id)
    rows = store.listing(connection, endpoint.id, limit, after=after, status=status)
    return [EndpointDelivery.of(row) for row in rows]


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/redeliver",
    status_code=HTTPStatus.ACCEPTED,
    responses=responses(404, 409),
)
async def redeliver_to_webhook_endpoint(
    webhook_endpoint_id: str, delivery_id: str, tenant: CurrentTenant, services: Shared
) -> EndpointDelivery:
    """Send an event again, now and with all its retries, under the same `webhook-id`."""
    return await services.transact(_redeliver, tenant.id, webhook_endpoint_id, _delivery_id(delivery_id))


def _redeliver(
    connection: Connection, tenant_id: uuid.UUID, endpoint_id: str, delivery_id: uuid.UUID
) -> EndpointDelivery:
    endpoint = _enabled(connection, tenant_id, endpoint_id)
    store.redeliver(connection, endpoint, delivery_id)
    row = store.one(connection, endpoint.id, delivery_id)
    if row is None:
        raise _no_such_delivery()
    return EndpointDelivery.of(row)


@router.post(
    "/v1/webhook_endpoints/{webhook_endpoint_id}/redeliver",
    status_code=HTTPStatus.ACCEPTED,
    openapi_extra=takes(Redelivery),
    responses=responses(400, 404, 409, 413, 422),
)
async def redeliver_all_to_webhook_endpoint(
    webhook_endpoint_id: str, request: Request, tenant: CurrentTenant, services: Shared
) -> Redelivered:
    """Send all events since a time again, each under the same `webhook-id` as before."""
    wanted = await read(request, services, Redelivery)
    since = datetime.fromtimestamp(wanted.since, UTC)
    count, after = 0, None
    while True:  # in short transactions, however many there are
        ids_again = await services.transact(
            _redeliver_some, tenant.id, webhook_endpoint_id, since, wanted.status, after
        )
        if not ids_again:
            return Redelivered(webhook_endpoint_id=webhook_endpoint_id, deliveries=count)
        count, after = count + len(ids_again), ids_again[-1]


def _redeliver_some(
    connection: Connection,
    tenant_id: uuid.UUID,
    endpoint_id: str,
    since: datetime,
    status: str | None,
    after: uuid.UUID | None,
) -> list[uuid.UUID]:
    endpoint = _enabled(connection, tenant_id, endpoint_id)
    return store.redeliver_since(connection, endpoint, since, status=status, after=after)


def _enabled(connection: Connection, tenant_id: uuid.UUID, endpoint_id: str) -> Endpoint:
    endpoint = found(connection, tenant_id, endpoint_id, hold=True)
    if endpoint.disabled_at:
        raise Refusal(
            Code.WEBHOOK_ENDPOINT_DISABLED,
            "Nothing is sent to a disabled endpoint",
            field="webhook_endpoint_id",
            remedy="Update the endpoint, which enables it again.",
        )
    return endpoint


def _delivery_id(written: str) -> uuid.UUID:
    try:
        return uuid.UUID(written)
    except ValueError:
        raise _no_such_delivery() from None


def _no_such_delivery() -> Refusal:
    return Refusal(Code.DELIVERY_NOT_FOUND, "The endpoint has no such delivery", field="delivery_id")
