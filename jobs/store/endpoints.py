"""Webhook endpoints of the OpenAI surface: made, shown, changed, given new secrets, disabled, deleted."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from jobs.domain.jobs import new_id
from jobs.targets import receiver_of

_OLD_SECRET_S = 86_400  # for how long an old secret signs too, where it is kept


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint without its secret. It gets nothing while `disabled_at` is set."""

    id: uuid.UUID
    name: str
    url: str
    event_types: Sequence[str]
    secret_hint: str
    failing_since: datetime | None
    disabled_at: datetime | None
    disabled_reason: str | None
    created_at: datetime
    updated_at: datetime


_COLUMNS = ", ".join(Endpoint.__dataclass_fields__)


def create(
    connection: Connection,
    tenant_id: uuid.UUID,
    *,
    name: str,
    url: str,
    event_types: Sequence[str],
    secret: str,
    secret_hint: str,
    most: int,
) -> Endpoint | None:
    """A new endpoint; None where the tenant has `most` already. `secret` is the encrypted form."""
    row = connection.execute(
        text(
            f"""
            INSERT INTO webhook_endpoints (id, tenant_id, name, url, event_types, secret, secret_hint)
            SELECT :id, :tenant_id, :name, :url, :event_types, :secret, :secret_hint
            WHERE (SELECT count(*) FROM webhook_endpoints WHERE tenant_id = :tenant_id) < :most
            RETURNING {_COLUMNS}
            """
        ),
        {
            "id": new_id(),
            "tenant_id": tenant_id,
            "name": name,
            "url": url,
            "event_types": list(event_types),
            "secret": secret,
            "secret_hint": secret_hint,
            "most": most,
        },
    ).one_or_none()
    return Endpoint(**row._mapping) if row else None


def get(
    connection: Connection, tenant_id: uuid.UUID, endpoint_id: uuid.UUID, *, hold: bool = False
) -> Endpoint | None:
    """The tenant's endpoint, or None. With `hold` nobody else changes it in this transaction."""
    row = connection.execute(
        text(
            f"SELECT {_COLUMNS} FROM webhook_endpoints WHERE id = :id AND tenant_id = :tenant_id"
            + (" FOR NO KEY UPDATE" if hold else "")
        ),
        {"id": endpoint_id, "tenant_id": tenant_id},
    ).one_or_none()
    return Endpoint(**row._mapping) if row else None


def listing(
    connection: Connection, tenant_id: uuid.UUID, limit: int, after: uuid.UUID | None = None
) -> list[Endpoint]:
    """The tenant's endpoints, newest first, from behind the id `after`."""
    rows = connection.execute(
        text(
            f"""
            SELECT {_COLUMNS} FROM webhook_endpoints
            WHERE tenant_id = :tenant_id AND (CAST(:after AS uuid) IS NULL OR id < :after)
            ORDER BY id DESC LIMIT :limit
            """
        ),
        {"tenant_id": tenant_id, "limit": limit, "after": after},
    )
    return [Endpoint(**row._mapping) for row in rows]


_UPDATE = text(
    f"""
    UPDATE webhook_endpoints
    SET name = :name, url = :url, event_types = :event_types,
        failing_since = CASE WHEN disabled_at IS NULL AND url = :url THEN failing_since END,
        disabled_at = NULL, disabled_reason = NULL,
        updated_at = CASE WHEN disabled_at IS NULL AND (name, url, event_types)
            = (:name, :url, CAST(:event_types AS text[])) THEN updated_at ELSE now() END
    WHERE id = :id RETURNING {_COLUMNS}
    """
)


def update(
    connection: Connection,
    tenant_id: uuid.UUID,
    endpoint_id: uuid.UUID,
    *,
    name: str | None = None,
    url: str | None = None,
    event_types: Sequence[str] | None = None,
) -> Endpoint | None:
    """Change what is not None, and enable the endpoint again if it was disabled; None if it is not there.

    What waits to be sent goes to the new address.
    """
    before = get(connection, tenant_id, endpoint_id, hold=True)
    if before is None:
        return None
    values = {
        "id": endpoint_id,
        "name": before.name if name is None else name,
        "url": before.url if url is None else url,
        "event_types": list(before.event_types if event_types is None else event_types),
    }
    if values["url"] != before.url:
        _redirect(connection, endpoint_id, str(values["url"]))
    return Endpoint(**connection.execute(_UPDATE, values).one()._mapping)


def _redirect(connection: Connection, endpoint_id: uuid.UUID, url: str) -> None:
    connection.execute(
        text(
            """
            WITH held AS (
                SELECT id FROM webhook_deliveries WHERE endpoint_id = :endpoint_id AND status = 'pending'
                ORDER BY id FOR NO KEY UPDATE
            )
            UPDATE webhook_deliveries d SET url = :url, host = :host FROM held WHERE d.id = held.id
            """
        ),
        {"endpoint_id": endpoint_id, "url": url, "host": receiver_of(url)},
    )


def rotate(
    connection: Connection,
    tenant_id: uuid.UUID,
    endpoint_id: uuid.UUID,
    *,
    secret: str,
    secret_hint: str,
    keep_old: bool,
) -> Endpoint | None:
    """Sign with a new secret, given encrypted, and with `keep_old` for a day with the one before too.

    None if the endpoint is not there.
    """
    row = connection.execute(
        text(
            f"""
            UPDATE webhook_endpoints
            SET old_secret = CASE WHEN :keep_old THEN secret END,
                old_secret_until = CASE WHEN :keep_old THEN now() + make_interval(secs => :old_s) END,
                secret = :secret, secret_hint = :secret_hint, updated_at = now()
            WHERE id = :id AND tenant_id = :tenant_id RETURNING {_COLUMNS}
            """
        ),
        {
            "id": endpoint_id,
            "tenant_id": tenant_id,
            "secret": secret,
            "secret_hint": secret_hint,
            "keep_old": keep_old,
            "old_s": _OLD_SECRET_S,
        },
    ).one_or_none()
    return Endpoint(**row._mapping) if row else None


def delete(connection: Connection, tenant_id: uuid.UUID, endpoint_id: uuid.UUID) -> bool:
    """Delete an endpoint with its deliveries, sent or not; False if it is not there."""
    return (
        connection.execute(
            text("DELETE FROM webhook_endpoints WHERE id = :id AND tenant_id = :tenant_id"),
            {"id": endpoint_id, "tenant_id": tenant_id},
        ).rowcount
        == 1
    )


@dataclass(frozen=True, slots=True)
class Attempted:
    """How an attempt at one of an endpoint's events went; `gone` is an answer of 410."""

    endpoint_id: uuid.UUID
    delivered: bool
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Disabled:
    """An endpoint that gets nothing any more, and why."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    reason: str


# Where nothing changes, nothing is locked or written: what is delivered on and on costs a look.
_JUDGE = text(
    """
    WITH judged AS (
        SELECT e.id, given.delivered, verdict.reason
        FROM webhook_endpoints e
        JOIN unnest(CAST(:id AS uuid[]), CAST(:delivered AS bool[]), CAST(:gone AS bool[]))
            AS given (id, delivered, gone) ON given.id = e.id
        CROSS JOIN LATERAL (
            SELECT CASE WHEN given.delivered OR e.disabled_at IS NOT NULL THEN NULL
                WHEN given.gone THEN 'the receiver is gone: it answered 410'
                WHEN e.failing_since < now() - make_interval(secs => :days * 86400)
                THEN CAST(:failing AS text) END
        ) AS verdict (reason)
        WHERE verdict.reason IS NOT NULL OR given.delivered = (e.failing_since IS NOT NULL)
        ORDER BY e.id FOR NO KEY UPDATE OF e
    )
    UPDATE webhook_endpoints e
    SET failing_since = CASE WHEN NOT judged.delivered THEN coalesce(e.failing_since, now()) END,
        disabled_at = CASE WHEN judged.reason IS NULL THEN e.disabled_at ELSE now() END,
        disabled_reason = coalesce(judged.reason, e.disabled_reason)
    FROM judged WHERE e.id = judged.id
    RETURNING e.id, e.tenant_id, judged.reason
    """
)


def judge(connection: Connection, attempts: Iterable[Attempted], disable_after_days: float) -> list[Disabled]:
    """Note which endpoints fail since when, and disable those that are gone or have failed for days.

    An endpoint is failing from its first failed attempt until one is delivered. Returns what was disabled.
    """
    latest: dict[uuid.UUID, Attempted] = {}
    for attempt in sorted(attempts, key=lambda one: (one.delivered, one.gone)):
        latest[attempt.endpoint_id] = attempt
    if not latest:
        return []
    judged = connection.execute(
        _JUDGE,
        {
            "id": list(latest),
            "delivered": [one.delivered for one in latest.values()],
            "gone": [one.gone for one in latest.values()],
            "days": disable_after_days,
            "failing": f"nothing was delivered for {disable_after_days:g} days",
        },
    )
    return [Disabled(*row) for row in judged if row.reason]
