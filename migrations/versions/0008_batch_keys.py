"""The idempotency keys of batches."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | Sequence[str] | None = "0007"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.add_column("batches", sa.Column("idempotency_key", sa.Text()))
    op.add_column("batches", sa.Column("payload_hash", sa.LargeBinary()))
    op.create_index(
        "ix_batches_idempotency_key",
        "batches",
        ["tenant_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )


def downgrade() -> None:
    """Take this revision back."""
    op.drop_index("ix_batches_idempotency_key", "batches")
    op.drop_column("batches", "payload_hash")
    op.drop_column("batches", "idempotency_key")
