"""Files of the OpenAI surface, kept in pieces, so that nobody holds one whole."""

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, text

from jobs.domain.jobs import new_id

PART_BYTES = 2**20

_COLUMNS = "id, tenant_id, filename, purpose, bytes, created_at, expires_at"
_KEPT = "(expires_at IS NULL OR expires_at > now())"


@dataclass(frozen=True, slots=True)
class File:
    """A stored file; once it has expired it is as good as deleted."""

    id: uuid.UUID
    tenant_id: uuid.UUID
    filename: str
    purpose: str
    bytes: int
    created_at: datetime
    expires_at: datetime | None


_INSERT = text(
    f"""
    INSERT INTO files (id, tenant_id, filename, purpose, bytes, expires_at)
    VALUES (:id, :tenant_id, :filename, :purpose, 0, now() + make_interval(secs => :expires_s))
    RETURNING {_COLUMNS}
    """
)
_ADD_PART = text("INSERT INTO file_parts (file_id, part, data) VALUES (:id, :part, :data)")


class Writer:
    """Writes one new file piece by piece; it is there once `close` was called and the caller committed."""

    def __init__(
        self,
        connection: Connection,
        tenant_id: uuid.UUID,
        filename: str,
        purpose: str,
        expires_s: int | None = None,
    ) -> None:
        """Begin the file; it expires `expires_s` seconds after its creation."""
        self._connection = connection
        self._file_id = new_id()
        self._buffer, self._part, self._bytes = bytearray(), 0, 0
        connection.execute(
            _INSERT,
            {
                "id": self._file_id,
                "tenant_id": tenant_id,
                "filename": filename,
                "purpose": purpose,
                "expires_s": expires_s,
            },
        )

    def write(self, data: bytes) -> None:
        """Add bytes to its end."""
        self._buffer += data
        while len(self._buffer) >= PART_BYTES:
            self._flush()

    def close(self) -> File:
        """The whole file."""
        if self._buffer:
            self._flush()
        row = self._connection.execute(
            text(f"UPDATE files SET bytes = :bytes WHERE id = :id RETURNING {_COLUMNS}"),
            {"id": self._file_id, "bytes": self._bytes},
        ).one()
        return File(**row._mapping)

    def _flush(self) -> None:
        data = bytes(self._buffer[:PART_BYTES])
        del self._buffer[:PART_BYTES]
        self._connection.execute(_ADD_PART, {"id": self._file_id, "part": self._part, "data": data})
        self._part += 1
        self._bytes += len(data)


def get(connection: Connection, tenant_id: uuid.UUID, file_id: uuid.UUID) -> File | None:
    """The tenant's file, or None."""
    row = connection.execute(
        text(f"SELECT {_COLUMNS} FROM files WHERE id = :id AND tenant_id = :tenant_id AND {_KEPT}"),
        {"id": file_id, "tenant_id": tenant_id},
    ).one_or_none()
    return File(**row._mapping) if row else None


def part(connection: Connection, file_id: uuid.UUID, number: int) -> bytes | None:
    """A file's piece of that number, from 0 on; None behind the last."""
    data: bytes | None = connection.execute(
        text("SELECT data FROM file_parts WHERE file_id = :id AND part = :part"),
        {"id": file_id, "part": number},
    ).scalar_one_or_none()
    return data


def pieces(connection: Connection, file_id: uuid.UUID) -> Iterator[bytes]:
    """A file's bytes in order, one piece at a time."""
    number = 0
    while (data := part(connection, file_id, number)) is not None:
        yield data
        number += 1


def listing(
    connection: Connection,
    tenant_id: uuid.UUID,
    limit: int,
    *,
    after: uuid.UUID | None = None,
    purpose: str | None = None,
    newest_first: bool = True,
) -> list[File]:
    """The tenant's files by age, from behind the id `after`."""
    conditions = ["tenant_id = :tenant_id", _KEPT]
    if after is not None:
        conditions.append(f"id {'<' if newest_first else '>'} :after")
    if purpose is not None:
        conditions.append("purpose = :purpose")
    rows = connection.execute(
        text(
            f"SELECT {_COLUMNS} FROM files WHERE {' AND '.join(conditions)}"
            f" ORDER BY id {'DESC' if newest_first else 'ASC'} LIMIT :limit"
        ),
        {"tenant_id": tenant_id, "limit": limit, "after": after, "purpose": purpose},
    )
    return [File(**row._mapping) for row in rows]


def delete(connection: Connection, tenant_id: uuid.UUID, file_id: uuid.UUID) -> bool:
    """Delete the tenant's file; False if there is none."""
    return (
        connection.execute(
            text(f"DELETE FROM files WHERE id = :id AND tenant_id = :tenant_id AND {_KEPT}"),
            {"id": file_id, "tenant_id": tenant_id},
        ).rowcount
        == 1
    )


def forget_expired(connection: Connection, n: int = 20) -> int:
    """Delete up to `n` files that have expired; returns how many."""
    return connection.execute(
        text(
            """
            DELETE FROM files WHERE id IN (
                SELECT id FROM files WHERE expires_at <= now()
                ORDER BY expires_at LIMIT :n FOR UPDATE SKIP LOCKED
            )
            """
        ),
        {"n": n},
    ).rowcount
