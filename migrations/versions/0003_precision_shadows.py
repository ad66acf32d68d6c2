"""Shadows of jobs on a reference lane, to compare precisions."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

revision: str = "0003"
down_revision: str | Sequence[str] | None = "0002"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "precision_shadows",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column(
            "shadow_id", sa.UUID(), nullable=False, comment="no key: that job goes once it is compared"
        ),
        sa.Column("lane", sa.Text(), nullable=False),
        sa.Column("reference", sa.Text(), nullable=False),
        sa.Column("exact", sa.Boolean(), nullable=True),
        sa.Column("agreed", sa.Integer(), nullable=True),
        sa.Column("tokens", sa.Integer(), nullable=True, comment="positions compared; NULL: no two answers"),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("compared_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_precision_shadows_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_precision_shadows")),
    )
    op.create_index("ix_precision_shadows_compared", "precision_shadows", ["compared_at"])


def downgrade() -> None:
    """Take this revision back."""
    op.drop_table("precision_shadows")
