"""The tables and the indexes that the hot statements stand on."""

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, UUID

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _time(name: str, **options: Any) -> Column[Any]:
    return Column(name, DateTime(timezone=True), **options)


def _created() -> Column[Any]:
    return _time("created_at", nullable=False, server_default=func.now())


tenants = Table(
    "tenants",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("signing_secret", Text, comment="encrypted; signs callbacks that bring no secret of their own"),
    _created(),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("tenant_id", UUID, ForeignKey("tenants.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("hint", Text, nullable=False, comment="the key's first characters, to tell keys apart"),
    Column("hash", LargeBinary, nullable=False, unique=True, comment="SHA-256 of the whole key"),
    _created(),
    _time("revoked_at"),
)

jobs = Table(
    "jobs",
    metadata,
    Column("id", UUID, primary_key=True),
    # No foreign key: every insert would share-lock the one tenant row, and tenants are never deleted.
    Column("tenant_id", UUID, nullable=False),
    Column("kind", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("queue", Text, nullable=False),
    Column("status", Text, nullable=False, server_default="queued"),
    Column("request", JSONB, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("prefix", BigInteger, nullable=False, server_default="0"),
    Column("metadata", JSONB(none_as_null=True)),
    Column("webhook_url", Text),
    Column("webhook_events", ARRAY(Text)),
    Column("webhook_secret", Text, comment="encrypted; NULL signs with the tenant's"),
    Column("idempotency_key", Text),
    Column("payload_hash", LargeBinary),
    _created(),
    _time("deadline", nullable=False),
    _time("not_before"),
    _time("redriven_at", comment="the last redrive; the deadline and the age count from it"),
    _time("ready_at", nullable=False, server_default=func.now(), comment="since when it waits for a worker"),
    _time("due_at", comment="waits until then: not_before, or the next try; NULL is ready"),
    _time("announced_at", comment="last announcement; NULL was never announced, or is to be again"),
    Column("announcements", SmallInteger, nullable=False, server_default="0"),
    Column("attempt", Integer, nullable=False, server_default="0"),
    Column("failures", Integer, nullable=False, server_default="0"),
    Column("max_attempts", Integer, nullable=False, server_default="3"),
    Column("redrives", Integer, nullable=False, server_default="0"),
    Column("worker", Text),
    _time("lease_until"),
    _time("claimed_at"),
    _time("finished_at"),
    Column("error_code", Text),
    Column("error_message", Text),
    Column("surface", Text, nullable=False, server_default="job", comment="the API it came through"),
)

_queued = jobs.c.status == text("'queued'")
_ready = text("status = 'queued' AND announced_at IS NULL AND due_at IS NULL")

Index("ix_jobs_feed", jobs.c.queue, jobs.c.tenant_id, jobs.c.deadline, jobs.c.id, postgresql_where=_ready)
Index(
    "ix_jobs_announced",
    jobs.c.queue,
    jobs.c.announced_at,
    postgresql_where=text("status = 'queued' AND announced_at IS NOT NULL"),
)
Index(
    "ix_jobs_due",
    jobs.c.due_at,
    postgresql_where=text("status = 'queued' AND due_at IS NOT NULL"),
)
Index("ix_jobs_queued", jobs.c.queue, jobs.c.ready_at, postgresql_where=_queued)
Index("ix_jobs_deadline", jobs.c.deadline, postgresql_where=_queued)
# Not on lease_until: so that a renewal changes no indexed column, and writes to no index at all.
Index("ix_jobs_running", jobs.c.lane, postgresql_where=text("status = 'running'"))
Index("ix_jobs_claimed", jobs.c.queue, jobs.c.claimed_at, postgresql_where=jobs.c.claimed_at.is_not(None))
Index("ix_jobs_finished", jobs.c.finished_at, postgresql_where=jobs.c.finished_at.is_not(None))
Index(
    "ix_jobs_idempotency_key",
    jobs.c.tenant_id,
    jobs.c.idempotency_key,
    unique=True,
    postgresql_where=jobs.c.idempotency_key.is_not(None),
)
Index("ix_jobs_tenant", jobs.c.tenant_id, jobs.c.id)
Index("ix_jobs_narrowed", jobs.c.tenant_id, jobs.c.lane, jobs.c.kind, jobs.c.status, jobs.c.id)

results = Table(
    "results",
    metadata,
    Column("job_id", UUID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, nullable=False),
    Column("output", Text, nullable=False),
    Column("finish_reason", Text, nullable=False),
    Column("prompt_tokens", Integer, nullable=False),
    Column("cached_tokens", Integer, nullable=False),
    Column("output_tokens", Integer, nullable=False),
    Column(
        "choices",
        JSONB(none_as_null=True),
        comment="where several answers or log-probabilities were asked for",
    ),
    Column(
        "windows", Integer, nullable=False, server_default="0", comment="pieces of a document that was cut"
    ),
    _created(),
)

latency_records = Table(
    "latency_records",
    metadata,
    Column("job_id", UUID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("outcome", Text, nullable=False),
    Column("lane", Text, nullable=False),
    Column("worker", Text),
    Column("gpu", Text),
    Column("engine", Text),
    Column("precision", Text),
    Column("queue_ms", Double),
    Column("claim_ms", Double),
    Column("admission_ms", Double),
    Column("engine_queue_ms", Double),
    Column("prefill_ms", Double),
    Column("ttft_ms", Double),
    Column("decode_ms", Double),
    Column("record_ms", Double),
    Column("total_ms", Double),
    Column("prompt_tokens", Integer),
    Column("cached_tokens", Integer),
    Column("output_tokens", Integer),
    Column("batch_size", Integer),
    Column("kv_usage", Double),
    Column("preemptions", Integer),
    _time("recorded_at", nullable=False, server_default=func.clock_timestamp()),
    Index("ix_latency_records_lane", "lane", "recorded_at"),
)

webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("job_id", UUID, ForeignKey("jobs.id", ondelete="CASCADE")),
    Column("batch_id", UUID, ForeignKey("batches.id", ondelete="CASCADE")),
    Column("endpoint_id", UUID, ForeignKey("webhook_endpoints.id", ondelete="CASCADE")),
    Column("tenant_id", UUID, nullable=False),
    Column("event", Text, nullable=False),
    Column("generation", Integer, nullable=False, comment="the job's redrives when it happened"),
    Column("url", Text, nullable=False),
    Column("host", Text, nullable=False, comment="the receiver, for the bound of deliveries at once"),
    Column("secret", Text, comment="encrypted; NULL signs with the tenant's"),
    Column("payload", Text, nullable=False, comment="the very bytes that are signed and sent"),
    Column("status", Text, nullable=False, server_default="pending"),
    Column("attempts", Integer, nullable=False, server_default="0", comment="all of them, redeliveries too"),
    Column("tries", Integer, nullable=False, server_default="0", comment="since it was last (re)started"),
    _time("next_attempt_at", server_default=func.now()),
    _time("lease_until"),
    _time("delivered_at"),
    _created(),
    # One of each event for a job's own webhook, and for each endpoint.
    UniqueConstraint(
        "job_id", "batch_id", "endpoint_id", "event", "generation", postgresql_nulls_not_distinct=True
    ),
)
_pending = webhook_deliveries.c.status == text("'pending'")
Index("ix_webhook_deliveries_due", webhook_deliveries.c.next_attempt_at, postgresql_where=_pending)
Index(
    "ix_webhook_deliveries_host",
    webhook_deliveries.c.host,
    webhook_deliveries.c.next_attempt_at,
    postgresql_where=_pending,
)
Index(
    "ix_webhook_deliveries_endpoint",
    webhook_deliveries.c.endpoint_id,
    webhook_deliveries.c.id,
    postgresql_where=webhook_deliveries.c.endpoint_id.is_not(None),
)

webhook_attempts = Table(
    "webhook_attempts",
    metadata,
    Column("delivery_id", UUID, ForeignKey("webhook_deliveries.id", ondelete="CASCADE"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    _time("started_at", nullable=False),
    Column("duration_ms", Double, nullable=False),
    Column("status_code", Integer),
    Column("error", Text),
)

webhook_disabled = Table(
    "webhook_disabled",
    metadata,
    Column("tenant_id", UUID, primary_key=True),
    Column("url", Text, primary_key=True),
    _time("disabled_at", nullable=False, server_default=func.now()),
    Column("reason", Text, nullable=False),
)

precision_shadows = Table(
    "precision_shadows",
    metadata,
    Column("job_id", UUID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("shadow_id", UUID, nullable=False, comment="no key: that job goes once it is compared"),
    Column("lane", Text, nullable=False),
    Column("reference", Text, nullable=False),
    Column("exact", Boolean),
    Column("agreed", Integer),
    Column("tokens", Integer, comment="positions compared; NULL: no two answers"),
    _created(),
    _time("compared_at"),
    Index("ix_precision_shadows_compared", "compared_at"),
)

workers = Table(
    "workers",
    metadata,
    Column("name", Text, primary_key=True),
    Column("lanes", ARRAY(Text), nullable=False),
    Column("model", Text),
    Column("engine", Text),
    Column("precision", Text),
    Column("gpu", Text),
    Column("state", Text, nullable=False),
    Column("figures", JSONB, nullable=False, server_default="{}"),
    _time("started_at", nullable=False, server_default=func.now()),
    _time("seen_at", nullable=False, server_default=func.now()),
)

responses = Table(
    "responses",
    metadata,
    Column("job_id", UUID, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("tenant_id", UUID, nullable=False),
    Column("previous_id", UUID, comment="the response that this one goes on from"),
    Column("body", JSONB, nullable=False, comment="what was asked for, as it is shown again"),
    Column("instructions", Text),
    Column("background", Boolean, nullable=False),
    Column("stored", Boolean, nullable=False, comment="whether it can be asked for later"),
    Column("dropped_tokens", Integer, nullable=False, server_default="0", comment="by truncation auto"),
    _created(),
)

files = Table(
    "files",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("tenant_id", UUID, nullable=False),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    _created(),
    _time("expires_at"),
    Index("ix_files_tenant", "tenant_id", "id"),
    Index("ix_files_expires", "expires_at", postgresql_where=text("expires_at IS NOT NULL")),
)

file_parts = Table(
    "file_parts",
    metadata,
    Column("file_id", UUID, ForeignKey("files.id", ondelete="CASCADE"), primary_key=True),
    Column("part", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),
)

batches = Table(
    "batches",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("tenant_id", UUID, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("model", Text),
    Column("completion_window", Text, nullable=False),
    Column("input_file_id", UUID, nullable=False),
    Column("output_file_id", UUID),
    Column("error_file_id", UUID),
    Column("metadata", JSONB(none_as_null=True)),
    Column("output_expires_s", Integer),
    Column("status", Text, nullable=False, server_default="validating"),
    Column("errors", JSONB(none_as_null=True)),
    Column("total", Integer, nullable=False, server_default="0"),
    Column(
        "completed", Integer, nullable=False, server_default="0", comment="final, as are failed and usage"
    ),
    Column("failed", Integer, nullable=False, server_default="0"),
    Column("usage", JSONB(none_as_null=True)),
    Column("idempotency_key", Text),
    Column("payload_hash", LargeBinary),
    _created(),
    _time("expires_at", nullable=False),
    _time("in_progress_at"),
    _time("finalizing_at"),
    _time("completed_at"),
    _time("failed_at"),
    _time("expired_at"),
    _time("cancelling_at"),
    _time("cancelled_at"),
    Index("ix_batches_tenant", "tenant_id", "id"),
    Index(
        "ix_batches_idempotency_key",
        "tenant_id",
        "idempotency_key",
        unique=True,
        postgresql_where=text("idempotency_key IS NOT NULL"),
    ),
    Index(
        "ix_batches_open",
        "id",
        postgresql_where=text("status IN ('validating', 'in_progress', 'finalizing', 'cancelling')"),
    ),
)

batch_items = Table(
    "batch_items",
    metadata,
    Column("batch_id", UUID, ForeignKey("batches.id", ondelete="CASCADE"), primary_key=True),
    Column("line", Integer, primary_key=True),
    Column("custom_id", Text, nullable=False),
    # No foreign key: 50,000 rows are copied at once, and retention takes the jobs first.
    Column("job_id", UUID, nullable=False, unique=True),
)

webhook_endpoints = Table(
    "webhook_endpoints",
    metadata,
    Column("id", UUID, primary_key=True),
    Column("tenant_id", UUID, nullable=False),
    Column("name", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("event_types", ARRAY(Text), nullable=False),
    Column("secret", Text, nullable=False, comment="encrypted"),
    Column("secret_hint", Text, nullable=False, server_default="", comment="its last characters"),
    Column("old_secret", Text, comment="encrypted; signs too until old_secret_until"),
    _time("old_secret_until"),
    _time("failing_since", comment="no delivery has succeeded since then"),
    _time("disabled_at"),
    Column("disabled_reason", Text),
    _created(),
    _time("updated_at", nullable=False, server_default=func.now()),
    Index("ix_webhook_endpoints_tenant", "tenant_id", "id"),
)
