"""What the engines tell: preemptions, several answers, windows, and a worker's figures."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0002"
down_revision: str | Sequence[str] | None = "0001"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.add_column("latency_records", sa.Column("preemptions", sa.Integer(), nullable=True))
    op.add_column(
        "results",
        sa.Column(
            "choices",
            postgresql.JSONB(none_as_null=True, astext_type=sa.Text()),
            nullable=True,
            comment="where several answers or log-probabilities were asked for",
        ),
    )
    op.add_column(
        "results",
        sa.Column(
            "windows",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="pieces of a document that was cut",
        ),
    )
    op.add_column(
        "workers",
        sa.Column("figures", postgresql.JSONB(astext_type=sa.Text()), server_default="{}", nullable=False),
    )


def downgrade() -> None:
    """Take this revision back."""
    op.drop_column("workers", "figures")
    op.drop_column("results", "windows")
    op.drop_column("results", "choices")
    op.drop_column("latency_records", "preemptions")
