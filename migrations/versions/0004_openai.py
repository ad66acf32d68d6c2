"""The OpenAI surface: responses, files, batches, webhook endpoints."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | Sequence[str] | None = "0003"
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply this revision."""
    op.create_table(
        "batches",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=True),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.UUID(), nullable=False),
        sa.Column("output_file_id", sa.UUID(), nullable=True),
        sa.Column("error_file_id", sa.UUID(), nullable=True),
        sa.Column("metadata", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("output_expires_s", sa.Integer(), nullable=True),
        sa.Column("status", sa.Text(), server_default="validating", nullable=False),
        sa.Column("errors", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("total", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "completed",
            sa.Integer(),
            server_default="0",
            nullable=False,
            comment="final, as are failed and usage",
        ),
        sa.Column("failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("usage", postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("in_progress_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finalizing_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("failed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expired_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelling_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancelled_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_batches")),
    )
    op.create_index(
        "ix_batches_open",
        "batches",
        ["id"],
        unique=False,
        postgresql_where=sa.text("status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
    )
    op.create_index("ix_batches_tenant", "batches", ["tenant_id", "id"], unique=False)
    op.create_table(
        "files",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index(
        "ix_files_expires",
        "files",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("expires_at IS NOT NULL"),
    )
    op.create_index("ix_files_tenant", "files", ["tenant_id", "id"], unique=False)
    op.create_table(
        "webhook_endpoints",
        sa.Column("id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("event_types", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False, comment="encrypted"),
        sa.Column(
            "old_secret", sa.Text(), nullable=True, comment="encrypted; signs too until old_secret_until"
        ),
        sa.Column("old_secret_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "failing_since",
            sa.DateTime(timezone=True),
            nullable=True,
            comment="no delivery has succeeded since then",
        ),
        sa.Column("disabled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("disabled_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_endpoints")),
    )
    op.create_index("ix_webhook_endpoints_tenant", "webhook_endpoints", ["tenant_id", "id"], unique=False)
    op.create_table(
        "batch_items",
        sa.Column("batch_id", sa.UUID(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.ForeignKeyConstraint(
            ["batch_id"], ["batches.id"], name=op.f("fk_batch_items_batch_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("batch_id", "line", name=op.f("pk_batch_items")),
        sa.UniqueConstraint("job_id", name=op.f("uq_batch_items_job_id")),
    )
    op.create_table(
        "file_parts",
        sa.Column("file_id", sa.UUID(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_file_parts_file_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("file_id", "part", name=op.f("pk_file_parts")),
    )
    op.create_table(
        "responses",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("tenant_id", sa.UUID(), nullable=False),
        sa.Column("previous_id", sa.UUID(), nullable=True, comment="the response that this one goes on from"),
        sa.Column(
            "body",
            postgresql.JSONB(astext_type=sa.Text()),
            nullable=False,
            comment="what was asked for, as it is shown again",
        ),
        sa.Column("instructions", sa.Text(), nullable=True),
        sa.Column("background", sa.Boolean(), nullable=False),
        sa.Column("stored", sa.Boolean(), nullable=False, comment="whether it can be asked for later"),
        sa.Column(
            "dropped_tokens", sa.Integer(), server_default="0", nullable=False, comment="by truncation auto"
        ),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_responses_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_responses")),
    )
    op.add_column(
        "jobs",
        sa.Column(
            "surface", sa.Text(), server_default="job", nullable=False, comment="the API it came through"
        ),
    )
    op.add_column("webhook_deliveries", sa.Column("batch_id", sa.UUID(), nullable=True))
    op.add_column("webhook_deliveries", sa.Column("endpoint_id", sa.UUID(), nullable=True))
    op.alter_column("webhook_deliveries", "job_id", existing_type=sa.UUID(), nullable=True)
    op.drop_constraint(
        op.f("uq_webhook_deliveries_job_id_event_generation"), "webhook_deliveries", type_="unique"
    )
    op.create_unique_constraint(
        op.f("uq_webhook_deliveries_job_id_batch_id_endpoint_id_event_generation"),
        "webhook_deliveries",
        ["job_id", "batch_id", "endpoint_id", "event", "generation"],
        postgresql_nulls_not_distinct=True,
    )
    op.create_foreign_key(
        op.f("fk_webhook_deliveries_endpoint_id"),
        "webhook_deliveries",
        "webhook_endpoints",
        ["endpoint_id"],
        ["id"],
        ondelete="CASCADE",
    )
    op.create_foreign_key(
        op.f("fk_webhook_deliveries_batch_id"),
        "webhook_deliveries",
        "batches",
        ["batch_id"],
        ["id"],
        ondelete="CASCADE",
    )


def downgrade() -> None:
    """Take this revision back."""
    op.drop_constraint(op.f("fk_webhook_deliveries_batch_id"), "webhook_deliveries", type_="foreignkey")
    op.drop_constraint(op.f("fk_webhook_deliveries_endpoint_id"), "webhook_deliveries", type_="foreignkey")
    op.drop_constraint(
        op.f("uq_webhook_deliveries_job_id_batch_id_endpoint_id_event_generation"),
        "webhook_deliveries",
        type_="unique",
    )
    op.create_unique_constraint(
        op.f("uq_webhook_deliveries_job_id_event_generation"),
        "webhook_deliveries",
        ["job_id", "event", "generation"],
        postgresql_nulls_not_distinct=False,
    )
    op.alter_column("webhook_deliveries", "job_id", existing_type=sa.UUID(), nullable=False)
    op.drop_column("webhook_deliveries", "endpoint_id")
    op.drop_column("webhook_deliveries", "batch_id")
    op.drop_column("jobs", "surface")
    op.drop_table("responses")
    op.drop_table("file_parts")
    op.drop_table("batch_items")
    op.drop_index("ix_webhook_endpoints_tenant", table_name="webhook_endpoints")
    op.drop_table("webhook_endpoints")
    op.drop_index("ix_files_tenant", table_name="files")
    op.drop_index("ix_files_expires", table_name="files", postgresql_where=sa.text("expires_at IS NOT NULL"))
    op.drop_table("files")
    op.drop_index("ix_batches_tenant", table_name="batches")
    op.drop_index(
        "ix_batches_open",
        table_name="batches",
        postgresql_where=sa.text("status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
    )
    op.drop_table("batches")
