"""Tenants and their API keys; a key is shown once and kept as a hash."""

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from jobs.domain.jobs import new_id

KEY_PREFIX = "trl_"
HINT_CHARS = 8


@dataclass(frozen=True, slots=True)
class Tenant:
    """Whose jobs they are. `signing_secret` is encrypted."""

    id: uuid.UUID
    name: str
    signing_secret: str | None


@dataclass(frozen=True, slots=True)
class KeyInfo:
    """What may be shown of a key after it was made."""

    id: uuid.UUID
    tenant: str
    hint: str
    created_at: datetime
    revoked_at: datetime | None


def by_name(connection: Connection, name: str) -> Tenant | None:
    """The tenant of that name, or None."""
    row = connection.execute(
        text("SELECT id, name, signing_secret FROM tenants WHERE name = :name"), {"name": name}
    ).one_or_none()
    return Tenant(**row._mapping) if row else None


def create(connection: Connection, name: str, signing_secret: str | None) -> Tenant | None:
    """A new tenant; None if the name is taken. `signing_secret` is the encrypted form."""
    row = connection.execute(
        text(
            "INSERT INTO tenants (id, name, signing_secret) VALUES (:id, :name, :secret)"
            " ON CONFLICT (name) DO NOTHING RETURNING id, name, signing_secret"
        ),
        {"id": new_id(), "name": name, "secret": signing_secret},
    ).one_or_none()
    return Tenant(**row._mapping) if row else None


def get_or_create(connection: Connection, name: str) -> Tenant:
    """The tenant of that name; a new one has no signing secret."""
    made = by_name(connection, name) or create(connection, name, None) or by_name(connection, name)
    if made is None:
        raise RuntimeError(f"the tenant {name!r} is neither there nor can it be made")
    return made


def set_signing_secret(connection: Connection, tenant_id: uuid.UUID, encrypted: str) -> bool:
    """Give the tenant its signing secret; False if it has one already."""
    return (
        connection.execute(
            text("UPDATE tenants SET signing_secret = :secret WHERE id = :id AND signing_secret IS NULL"),
            {"id": tenant_id, "secret": encrypted},
        ).rowcount
        == 1
    )


def create_key(connection: Connection, tenant_id: uuid.UUID) -> str:
    """A new API key with 256 random bits; this answer is the only time it can be read."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    connection.execute(
        text("INSERT INTO api_keys (id, tenant_id, hint, hash) VALUES (:id, :tenant_id, :hint, :hash)"),
        {"id": new_id(), "tenant_id": tenant_id, "hint": key[:HINT_CHARS], "hash": _hash(key)},
    )
    return key


def of_key(connection: Connection, key: str) -> Tenant | None:
    """The tenant that a key speaks for; None if it is unknown or revoked."""
    row = connection.execute(
        text(
            "SELECT t.id, t.name, t.signing_secret FROM api_keys k JOIN tenants t ON t.id = k.tenant_id"
            " WHERE k.hash = :hash AND k.revoked_at IS NULL"
        ),
        {"hash": _hash(key)},
    ).one_or_none()
    return Tenant(**row._mapping) if row else None


def keys(connection: Connection) -> list[KeyInfo]:
    """All keys, oldest first."""
    rows = connection.execute(
        text(
            "SELECT k.id, t.name AS tenant, k.hint, k.created_at, k.revoked_at"
            " FROM api_keys k JOIN tenants t ON t.id = k.tenant_id ORDER BY k.id"
        )
    )
    return [KeyInfo(**row._mapping) for row in rows]


def revoke_key(connection: Connection, key_id: uuid.UUID) -> bool:
    """End a key; False if there is no such live key."""
    return (
        connection.execute(
            text("UPDATE api_keys SET revoked_at = now() WHERE id = :id AND revoked_at IS NULL"),
            {"id": key_id},
        ).rowcount
        == 1
    )


def _hash(key: str) -> bytes:
    # A fast hash is right here: the key is random, so there is nothing to guess slowly.
    return hashlib.sha256(key.encode()).digest()
