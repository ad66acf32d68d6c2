"""The idempotency keys of batches, and one index for all lists of a tenant's jobs that are narrowed."""

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
    op.create_index("ix_jobs_narrowed", "jobs", ["tenant_id", "lane", "kind", "status", "id"])
    op.drop_index("ix_jobs_tenant_lane", "jobs")
    op.drop_index("ix_jobs_tenant_status", "jobs")


def downgrade() -> None:
    """Take this revision back."""
    op.create_index("ix_jobs_tenant_status", "jobs", ["tenant_id", "status", "id"])
    op.create_index("ix_jobs_tenant_lane", "jobs", ["tenant_id", "lane", "id"])
    op.drop_index("ix_jobs_narrowed", "jobs")
    op.drop_index("ix_batches_idempotency_key", "batches")
    op.drop_column("batches", "payload_hash")
    op.drop_column("batches", "idempotency_key")
