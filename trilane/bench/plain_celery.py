"""The design that Trilane is measured beside: a Celery task whose arguments carry the prompt, one INSERT.

It is written as a careful team would: thread pool, acks late, no result backend, a pooled engine without a
ping before use, AUTOCOMMIT (one round trip a job), Celery's own defaults elsewhere. Its worker is
`python -m trilane.bench.plain_celery THREADS`.
"""

import sys
from typing import Any

from celery import Celery
from sqlalchemy import create_engine, text

from jobs import settings as settings_module
from jobs.settings import Settings

CREATE_TABLE = (
    "CREATE TABLE plain_results (job_id uuid PRIMARY KEY, output text NOT NULL,"
    " created_at timestamptz NOT NULL DEFAULT now())"
)
_INSERT = text("INSERT INTO plain_results (job_id, output) VALUES (:job_id, :output)")


def create_app(settings: Settings, threads: int) -> Celery:
    """The app of its worker and of who publishes; the task is `app.tasks["generate"]`."""
    app = Celery("plain", broker=settings.redis_url, set_as_current=False)
    app.conf.update(task_acks_late=True, task_ignore_result=True, task_default_queue="plain")
    database = create_engine(
        settings.database_url.replace("postgresql:", "postgresql+psycopg:", 1),
        pool_size=threads,
        isolation_level="AUTOCOMMIT",
    )

    def generate(job_id: str, prompt: str, max_tokens: int) -> None:
        output = f"{len(prompt)} " + "token " * (max_tokens - 1)  # as long as the sim engine's answer
        with database.connect() as connection:
            connection.execute(_INSERT, {"job_id": job_id, "output": output})

    app.task(name="generate", shared=False)(generate)
    return app


def main(threads: int) -> Any:
    """Run the worker until SIGTERM."""
    app = create_app(settings_module.load(), threads)
    return app.worker_main(["worker", "--pool", "threads", "--concurrency", str(threads)])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
