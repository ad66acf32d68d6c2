"""Webhook endpoints as OpenAI's clients know them: how one is asked for, and how it is shown."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from sqlalchemy import Connection

from jobs import targets
from jobs.domain import openai_ids
from jobs.domain.events import EndpointEvent
from jobs.domain.openai_ids import Prefix
from jobs.secrets import Vault, new_signing_secret
from jobs.settings import Settings
from jobs.store import endpoints
from jobs.store.endpoints import Endpoint
from producer.api.webhooks import DeliveryView
from producer.openai.files import unix
from producer.refusals import Code, Refusal
from producer.request import MetadataValue

MOST_ENDPOINTS = 50  # of one tenant: each is a row more to write with every event
_HINT_CHARS = 4

Name = Annotated[MetadataValue, Field(min_length=1)]
Event = Annotated[EndpointEvent, Field(strict=False)]
Events = Annotated[
    list[Event], Field(min_length=1), AfterValidator(lambda events: list(dict.fromkeys(events)))
]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


class CreateEndpoint(_Form):
    """A request for an endpoint; unknown fields are refused."""

    event_types: Events
    name: Name
    url: str


class UpdateEndpoint(_Form):
    """What is to change; what is left out stays. Each update enables an endpoint that was disabled."""

    event_types: Events | None = None
    name: Name | None = None
    url: str | None = None


class RotateSecret(_Form):
    """A request for a new secret."""

    keep_old_secret_active_for_24_hours: bool = Field(
        default=False, description="Sign with the old secret too for 24 hours; else it ends at once."
    )


class SendSample(_Form):
    """A request for a sample."""

    event_type: Event


class Redelivery(_Form):
    """Which events to send again."""

    since: int = Field(ge=0, le=2**37, description="Unix time: events from then on.")
    status: Literal["delivered", "failed", "pending"] | None = Field(
        default=None, description="Only those that stand so now, such as `failed`."
    )


class EndpointView(BaseModel):
    """An endpoint. Its secret is shown once, when it is new."""

    id: str
    object: Literal["webhook_endpoint"] = "webhook_endpoint"
    created_at: int
    updated_at: int
    name: str
    url: str
    event_types: Sequence[EndpointEvent]
    signing_secret_hint: str
    status: Literal["enabled", "disabled"] = Field(description="Ours: nothing is sent to a disabled one.")
    failing_since: int | None = Field(description="Ours: nothing has been delivered since then.")
    disabled_at: int | None = Field(description="Ours.")
    disabled_reason: str | None = Field(description="Ours: why it was disabled by itself.")

    @classmethod
    def of(cls, endpoint: Endpoint, **more: Any) -> Self:
        """The view of a stored endpoint."""
        times = {
            name: unix(moment) if (moment := getattr(endpoint, name)) else None
            for name in ("created_at", "updated_at", "failing_since", "disabled_at")
        }
        return cls(
            id=openai_ids.shown(Prefix.WEBHOOK_ENDPOINT, endpoint.id),
            name=endpoint.name,
            url=endpoint.url,
            event_types=[EndpointEvent(event) for event in endpoint.event_types],
            signing_secret_hint=f"whsec_...{endpoint.secret_hint}",
            status="disabled" if endpoint.disabled_at else "enabled",
            disabled_reason=endpoint.disabled_reason,
            **times,
            **more,
        )


class EndpointWithSecret(EndpointView):
    """An endpoint with a secret that is new."""

    signing_secret: str = Field(repr=False)


class DeletedEndpoint(BaseModel):
    """An endpoint that is no more."""

    id: str
    object: Literal["webhook_endpoint.deleted"] = "webhook_endpoint.deleted"
    deleted: Literal[True] = True


class SampleAnswer(BaseModel):
    """What an endpoint answered to a sample, whether or not it was a success."""

    object: Literal["webhook_endpoint.test"] = "webhook_endpoint.test"
    webhook_endpoint_id: str
    event_type: EndpointEvent
    status_code: int
    success: Literal[True] = True


class EventTypeList(BaseModel):
    """The events that an endpoint may ask for."""

    object: Literal["list"] = "list"
    data: Sequence[EndpointEvent] = tuple(EndpointEvent)


class EndpointDelivery(DeliveryView):
    """One event's way to an endpoint."""

    data_id: str | None = Field(description="What the event is of; null for a test.")

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """The view of a stored delivery."""
        own = row["job_id"] or row["batch_id"]
        data_id = openai_ids.shown(EndpointEvent(row["event"]).prefix, own) if own else None
        return cls.model_validate({**row, "data_id": data_id})


class Redelivered(BaseModel):
    """How many events are sent again."""

    object: Literal["webhook_endpoint.redelivery"] = "webhook_endpoint.redelivery"
    webhook_endpoint_id: str
    deliveries: int


def check_target(url: str, settings: Settings) -> None:
    """Raise `Refusal` where webhooks may not go. May ask a name server."""
    try:
        targets.check(url, settings.webhooks.allow)
    except targets.TargetRefused as refused:
        raise Refusal(
            Code.WEBHOOK_TARGET_REFUSED,
            f"Webhooks cannot be sent there: {refused.reason}",
            field="url",
            remedy="Give a public https address, or have the operator allow its network.",
        ) from None


def new_secret(settings: Settings) -> tuple[str, str, str]:
    """A new secret: itself, encrypted, and what may be shown of it later. Raises `Refusal`."""
    if settings.secret_key is None:
        raise Refusal(
            Code.WEBHOOK_UNSIGNED,
            "Secrets cannot be kept here",
            remedy="Have the operator set TRILANE_SECRET_KEY.",
        )
    secret = new_signing_secret()
    return secret, Vault(settings).encrypt(secret), secret.rstrip("=")[-_HINT_CHARS:]


def not_found() -> Refusal:
    """The refusal for an endpoint that the tenant does not have, whether or not another has it."""
    return Refusal(Code.WEBHOOK_ENDPOINT_NOT_FOUND, "No such webhook endpoint", field="webhook_endpoint_id")


def own_id(endpoint_id: str) -> uuid.UUID:
    """Our id of an endpoint. Raises `Refusal` where it can be none."""
    own = openai_ids.own(Prefix.WEBHOOK_ENDPOINT, endpoint_id)
    if own is None:
        raise not_found()
    return own


def found(connection: Connection, tenant_id: uuid.UUID, endpoint_id: str, *, hold: bool = False) -> Endpoint:
    """The tenant's endpoint; with `hold` nobody else changes it now. Raises `Refusal`."""
    endpoint = endpoints.get(connection, tenant_id, own_id(endpoint_id), hold=hold)
    if endpoint is None:
        raise not_found()
    return endpoint
