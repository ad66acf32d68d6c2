"""A million jobs such as a busy installation holds after a month, made on the server in about a minute."""

from sqlalchemy import Connection, Engine, text

from jobs.domain.jobs import Status
from jobs.store import tables

ENDED, RECENT, QUEUED, RUNNING = 929_000, 6_000, 64_800, 200  # jobs; the recent ones ended in 5 minutes
HUNG = 100_000  # due deliveries of the one receiver that hangs
HUNG_HOST = "hung.example"
WINDOW = 1_000

# Each job draws its own numbers: `a` the tenant, `b` the lane, `c` the priority, `d` the end, `e` the rest.
_JOBS = """
    INSERT INTO jobs (id, tenant_id, kind, model, lane, priority, queue, status, request, prompt_tokens,
                      prefix, webhook_url, webhook_events, idempotency_key, payload_hash, created_at,
                      deadline, ready_at, attempt, failures, worker, lease_until, claimed_at, finished_at,
                      error_code)
    SELECT uuidv7(created_at - now()), tenants[1 + floor(array_length(tenants, 1) * a ^ 3)::int],
           CASE lane WHEN 'hot' THEN 'chat' WHEN 'warm' THEN 'ticket' ELSE 'report' END,
           'a-model', lane, priority,
           lane || CASE WHEN priority < 3 THEN '.urgent' WHEN priority < 7 THEN '.normal' ELSE '.low' END,
           status,
           jsonb_build_object('messages', jsonb_build_array(jsonb_build_object(
               'role', 'user', 'content', repeat('What are your opening hours? ', 1 + (e * 20)::int)))),
           12 + (e * 400)::int, (e * 1e15)::bigint,
           CASE WHEN e < 0.25 THEN 'https://hooks' || (c * 50)::int || '.example/trilane' END,
           CASE WHEN e < 0.25 THEN ARRAY['job.succeeded', 'job.failed'] END,
           CASE WHEN b * c < 0.1 THEN 'key ' || n || created_at END,
           CASE WHEN b * c < 0.1 THEN sha256(n::text::bytea) END,
           created_at, created_at + interval '24 hours', created_at,
           (status <> 'queued')::int, (status = 'failed')::int,
           CASE WHEN status <> 'queued' THEN 'a-worker' END,
           CASE WHEN status = 'running'
               THEN now() + (CASE WHEN d < 0.1 THEN -1 ELSE 1 END) * interval '8 seconds' END,
           CASE WHEN status <> 'queued' THEN created_at + d * interval '9 seconds' END,
           CASE WHEN status IN ('succeeded', 'failed', 'cancelled', 'expired')
               THEN created_at + d * interval '9 seconds' + e * interval '20 seconds' END,
           CASE WHEN status = 'failed' THEN 'engine_error' END
    FROM (
        SELECT n, a, b, c, d, e, now() - since * (1 - n / count::float8) - least AS created_at,
               CASE WHEN b < hot THEN 'hot' WHEN b < warm THEN 'warm' ELSE 'cold' END AS lane,
               CASE WHEN b < warm THEN floor(c * 10) ELSE 8 END::smallint AS priority,
               CASE WHEN status <> 'ended' THEN status WHEN d < 0.94 THEN 'succeeded'
                    WHEN d < 0.97 THEN 'failed' WHEN d < 0.9999 THEN 'cancelled' ELSE 'expired' END AS status
        FROM (SELECT CAST(:status AS text) AS status, CAST(:count AS int) AS count,
                     CAST(:since AS interval) AS since, CAST(:least AS interval) AS least,
                     CAST(:hot AS float8) AS hot, CAST(:warm AS float8) AS warm) AS given,
             LATERAL (SELECT n, random() AS a, random() AS b, random() AS c, random() AS d, random() AS e
                      FROM generate_series(1, count) AS n) AS drawn
    ) AS job, (SELECT array_agg(id ORDER BY name) AS tenants FROM tenants) AS whose
"""

_SEGMENTS = (
    {"status": "ended", "count": ENDED, "since": "30 days", "least": "6 minutes", "hot": 0.5, "warm": 0.9},
    {"status": "queued", "count": QUEUED, "since": "2 hours", "least": "0", "hot": 0.05, "warm": 0.2},
    {"status": "ended", "count": RECENT, "since": "5 minutes", "least": "9 seconds", "hot": 0.5, "warm": 0.9},
    {"status": "running", "count": RUNNING, "since": "9 seconds", "least": "0", "hot": 0.5, "warm": 0.9},
)

_REST = (
    f"""
    WITH first AS (
        SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY queue ORDER BY created_at) AS place
                        FROM jobs WHERE status = 'queued') AS placed WHERE place <= {WINDOW}
    )
    UPDATE jobs j SET announced_at = now() - interval '20 seconds', announcements = 1
    FROM first WHERE j.id = first.id
    """,
    """
    UPDATE jobs SET due_at = now() + (random() - 0.1) * interval '10 minutes'
    WHERE status = 'queued' AND announced_at IS NULL AND prefix % 20 = 0
    """,
    "UPDATE jobs SET deadline = now() - interval '1 second' WHERE status = 'queued' AND prefix % 200 = 1",
    """
    UPDATE jobs SET announced_at = created_at, announcements = 1 WHERE claimed_at > now() - interval '1 hour'
    """,
    """
    INSERT INTO results (job_id, attempt, output, finish_reason, prompt_tokens, cached_tokens, output_tokens)
    SELECT id, 1, repeat('From nine to five. ', 1 + (prompt_tokens % 10)), 'stop', prompt_tokens, 0, 40
    FROM jobs WHERE status = 'succeeded'
    """,
    """
    INSERT INTO latency_records (job_id, attempt, outcome, lane, worker, gpu, engine, precision, queue_ms,
        claim_ms, admission_ms, engine_queue_ms, prefill_ms, ttft_ms, decode_ms, record_ms, total_ms,
        prompt_tokens, cached_tokens, output_tokens, batch_size, kv_usage, recorded_at)
    SELECT id, 1, status, lane, worker, 'gpu 0', 'sim', 'fp16', random() * 50, 2, 3, 0, 40, 60, 200, 2,
           250 * (1 + random() ^ 4), prompt_tokens, 0, 40, 4, random(), finished_at
    FROM jobs WHERE finished_at IS NOT NULL
    """,
    f"""
    INSERT INTO webhook_deliveries (id, job_id, tenant_id, event, generation, url, host, payload, status,
                                    attempts, tries, next_attempt_at, delivered_at, created_at)
    SELECT uuidv7(finished_at - now()), id, tenant_id, 'job.' || status, 0, 'https://' || host || '/trilane',
           host, repeat('a payload ', 40), CASE WHEN due THEN 'pending' ELSE 'delivered' END,
           (NOT due)::int, (NOT due)::int, CASE WHEN due THEN now() - random() * interval '1 hour' END,
           CASE WHEN NOT due THEN finished_at END, finished_at
    FROM (
        SELECT *, place <= {HUNG} + 500 AS due,
               CASE WHEN place <= {HUNG} THEN '{HUNG_HOST}' ELSE split_part(webhook_url, '/', 3) END AS host
        FROM (SELECT *, row_number() OVER (ORDER BY id DESC) AS place FROM jobs
              WHERE webhook_url IS NOT NULL AND status IN ('succeeded', 'failed')) AS told
    ) AS delivery
    """,
    """
    INSERT INTO webhook_attempts (delivery_id, attempt, started_at, duration_ms, status_code)
    SELECT id, 1, delivered_at, 40, 200 FROM webhook_deliveries WHERE status = 'delivered'
    """,
)


def fill(engine: Engine) -> None:
    """Fill migrated, empty tables; their indexes are made again afterwards, as for any bulk load."""
    indexes = [index for table in tables.metadata.sorted_tables for index in table.indexes]
    with engine.begin() as connection:
        # Foreign keys are not looked up row by row: every row is derived from the one it points to.
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT setseed(0.5)"))
        for index in indexes:
            index.drop(connection)
        _tenants(connection)
        for segment in _SEGMENTS:
            connection.execute(text(_JOBS), segment)
        for statement in _REST:
            connection.execute(text(statement))
        for index in indexes:
            index.create(connection)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("SET statement_timeout = 0"))
        connection.execute(text("VACUUM (ANALYZE)"))
        connection.execute(text("CHECKPOINT"))


def _tenants(connection: Connection) -> None:
    connection.execute(
        text(
            "INSERT INTO tenants (id, name) SELECT uuidv7(), 'tenant ' || n FROM generate_series(10, 29) AS n"
        )
    )
    connection.execute(
        text(
            "INSERT INTO api_keys (id, tenant_id, hint, hash)"
            " SELECT uuidv7(), id, 'trl_xxxx', sha256(name::bytea) FROM tenants"
        )
    )


def counts(connection: Connection) -> dict[str, int]:
    """How many jobs there are, by status, and how many rows in the other big tables."""
    rows = connection.execute(text("SELECT status, count(*) AS n FROM jobs GROUP BY status")).all()
    found = {f"jobs {Status(row.status)}": int(row.n) for row in rows}
    for table in ("results", "latency_records", "webhook_deliveries", "webhook_attempts"):
        found[table] = connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()
    return found
