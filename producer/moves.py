"""What a tenant may do to a job that was accepted: cancel it, or redrive it once it has failed."""

import uuid

from sqlalchemy import Connection, Engine

from jobs import live
from jobs.broker import Announcer
from jobs.domain.jobs import Status
from jobs.store import moves, reads
from jobs.store.moves import Moved
from jobs.store.reads import JobDetail
from producer.refusals import Code, Refusal


def cancel(engine: Engine, announcer: Announcer, tenant_id: uuid.UUID, job_id: uuid.UUID) -> JobDetail:
    """Cancel a queued or running job; one that was cancelled before is answered as it is.

    Raises `Refusal` where the tenant has no such job or it ended otherwise.
    """
    with engine.begin() as connection:
        moved = moves.cancel(connection, tenant_id, job_id)
        detail = found(connection, tenant_id, job_id)
    if moved:
        tell_cancelled(announcer, job_id, moved)
    elif detail.job.status is not Status.CANCELLED:
        raise Refusal(Code.JOB_ENDED, f"The job has {detail.job.status} already")
    return detail


def tell_cancelled(announcer: Announcer, job_id: uuid.UUID, moved: Moved) -> None:
    """Have the worker of a cancelled job free the sequence at once, and tell who waits for it."""
    hints = [(live.channel(str(job_id)), live.to_message(live.ENDED))]
    if moved.source is Status.RUNNING:
        hints.append((live.CANCEL_CHANNEL, str(job_id)))
    announcer.publish(hints)


def redrive(engine: Engine, tenant_id: uuid.UUID, job_id: uuid.UUID) -> JobDetail:
    """Queue a failed job again with a new budget; the feeder announces it.

    Raises `Refusal` where the tenant has no such job, or it has not failed, or its request was deleted.
    """
    with engine.begin() as connection:
        moved = moves.redrive(connection, tenant_id, job_id)
        detail = found(connection, tenant_id, job_id)
    if moved is None:
        raise Refusal(
            Code.JOB_NOT_FAILED,
            f"Only a failed job that has its request still can be redriven; this one is {detail.job.status}",
            remedy="Submit it as a new job.",
        )
    return detail


def found(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> JobDetail:
    """The tenant's job with all that hangs on it. Raises `Refusal` where there is none."""
    detail = reads.detail(connection, tenant_id, job_id)
    if detail is None:
        raise not_found()
    return detail


def id_of(text: str) -> uuid.UUID:
    """The id that a caller wrote; what is no id names no job, so it is refused likewise."""
    try:
        return uuid.UUID(text)
    except ValueError:
        raise not_found() from None


def not_found() -> Refusal:
    """The refusal for a job that the tenant does not have, whether or not another has it."""
    return Refusal(Code.JOB_NOT_FOUND, "No such job", remedy="Ended jobs are kept for a limited time.")
