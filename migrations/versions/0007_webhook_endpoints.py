"""What a webhook endpoint shows of its secret, and the index of its deliveries."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0007"
down_revision: str | Sequence[str] | None = "0004"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.add_column(
        "webhook_endpoints",
        sa.Column("secret_hint", sa.Text(), nullable=False, server_default="", comment="its last characters"),
    )
    op.create_index(
        "ix_webhook_deliveries_endpoint",
        "webhook_deliveries",
        ["endpoint_id", "id"],
        postgresql_where=sa.text("endpoint_id IS NOT NULL"),
    )


def downgrade() -> None:
    """Take this revision back."""
    op.drop_index("ix_webhook_deliveries_endpoint", "webhook_deliveries")
    op.drop_column("webhook_endpoints", "secret_hint")
