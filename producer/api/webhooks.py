"""The routes of a job's webhooks: what was sent, how it went, and sending it again."""

import uuid
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from jobs.store import job_deliveries
from producer import moves
from producer.api.auth import CurrentTenant
from producer.api.errors import responses
from producer.api.services import Shared
from producer.refusals import Code, Refusal

router = APIRouter(tags=["webhooks"])


class AttemptView(BaseModel):
    """One attempt at a delivery."""

    model_config = ConfigDict(from_attributes=True)

    attempt: int
    started_at: datetime
    duration_ms: float
    status_code: int | None = Field(description="What the receiver answered.")
    error: str | None = Field(description="Why there is no answer, or why it does not count.")


class DeliveryView(BaseModel):
    """One event's way to its receiver."""

    id: uuid.UUID = Field(description="The `webhook-id` header, the same at every attempt.")
    event: str
    url: str
    status: Literal["pending", "delivered", "failed"]
    attempts: int
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    created_at: datetime
    attempt_log: Sequence[AttemptView]


class DeliveryList(BaseModel):
    """A job's deliveries, oldest first."""

    data: Sequence[DeliveryView]


@router.get("/v1/jobs/{job_id}/webhooks", responses=responses(404))
async def job_webhooks(job_id: str, tenant: CurrentTenant, services: Shared) -> DeliveryList:
    """The deliveries of a job's events, with each attempt."""
    return await services.transact(_deliveries, tenant.id, moves.id_of(job_id))


@router.post("/v1/jobs/{job_id}/webhooks/{delivery_id}/redeliver", status_code=202, responses=responses(404))
async def redeliver(job_id: str, delivery_id: str, tenant: CurrentTenant, services: Shared) -> DeliveryView:
    """Send an event again, now and with all its retries; its receiver is enabled again if it was not."""
    return await services.transact(_redeliver, tenant.id, moves.id_of(job_id), delivery_id)


def _deliveries(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> DeliveryList:
    moves.found(connection, tenant_id, job_id)
    return DeliveryList.model_validate({"data": job_deliveries.of_job(connection, job_id)})


def _redeliver(
    connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID, delivery_id: str
) -> DeliveryView:
    ours = {str(delivery.id) for delivery in _deliveries(connection, tenant_id, job_id).data}
    if delivery_id not in ours or not job_deliveries.redeliver(connection, job_id, uuid.UUID(delivery_id)):
        raise Refusal(Code.DELIVERY_NOT_FOUND, "The job has no such delivery")
    now = _deliveries(connection, tenant_id, job_id).data
    return next(delivery for delivery in now if str(delivery.id) == delivery_id)
