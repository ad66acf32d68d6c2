"""What a tenant may do with responses: create, follow, cancel, delete them, and go on from them."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from sqlalchemy import Connection, Engine

from jobs.broker import Announcer
from jobs.domain import openai_ids
from jobs.domain.jobs import Job, NewJob, Surface
from jobs.domain.lanes import Kind
from jobs.domain.openai_ids import Prefix
from jobs.domain.requests import Message, Role
from jobs.store import reads
from jobs.store import responses as store
from jobs.store.reads import JobDetail
from jobs.store.responses import Asked
from jobs.store.tenants import Tenant
from producer import moves
from producer.openai import intake
from producer.openai.responses_form import CreateResponse, InputToCount
from producer.openai.responses_translation import messages_of, renamed, request_of
from producer.openai.responses_views import WHOLE, conversation
from producer.prepare import Idempotency, Preparer
from producer.refusals import Code, Refusal
from producer.request import Request


@dataclass(frozen=True, slots=True)
class Found:
    """A response: what was asked for, and the job that answers it."""

    asked: Asked
    detail: JobDetail

    @classmethod
    def accepted(cls, asked: Asked, job: Job) -> Self:
        """A response that nothing has happened to yet."""
        return cls(asked, JobDetail(job, None, ()))


def found(connection: Connection, tenant_id: uuid.UUID, job_id: uuid.UUID) -> Found:
    """The tenant's response, kept or not. Raises `Refusal` where there is none."""
    asked = store.get(connection, tenant_id, job_id)
    detail = reads.detail(connection, tenant_id, job_id) if asked else None
    if asked is None or detail is None or detail.erased:
        raise not_found()
    return Found(asked, detail)


def kept(connection: Connection, tenant_id: uuid.UUID, response_id: str) -> Found:
    """The tenant's response of this id, if it is kept. Raises `Refusal` where there is none."""
    job_id = openai_ids.own(Prefix.RESPONSE, response_id)
    if job_id is None:
        raise not_found()
    response = found(connection, tenant_id, job_id)
    if not response.asked.stored:
        raise not_found()
    return response


def before(connection: Connection, tenant_id: uuid.UUID, response_id: str) -> tuple[uuid.UUID, list[Message]]:
    """The earlier response's own id, and the conversation with its answer. Raises `Refusal`."""
    try:
        response = kept(connection, tenant_id, response_id)
    except Refusal:
        raise Refusal(
            Code.PREVIOUS_RESPONSE_NOT_FOUND,
            "There is no such response, or it is not stored",
            field="previous_response_id",
            remedy="Send the whole conversation as input.",
        ) from None
    job, result = response.detail.job, response.detail.result
    if result is None:
        raise Refusal(
            Code.INVALID_VALUE,
            f"Nothing can follow it: its job is {job.status}",
            field="previous_response_id",
            remedy="Name a response that is completed.",
        )
    return job.id, [*conversation(response.asked, job), Message(Role.ASSISTANT, result["output"])]


def prepare(
    preparer: Preparer,
    tenant: Tenant,
    form: CreateResponse,
    earlier: tuple[uuid.UUID, list[Message]] | None,
    idempotency: Idempotency | None,
) -> tuple[NewJob, Asked]:
    """The job of a form and what to keep beside it; counting tokens takes the processor. Raises `Refusal`."""
    previous_id, messages = earlier or (None, [])
    whole = request_of(form, messages)
    request, dropped = whole, 0
    try:
        if form.truncation == "auto":
            request, dropped = intake.truncated(preparer, whole, form.service_tier)
        job = intake.prepare(preparer, tenant, request, form.service_tier, Surface.RESPONSE, idempotency)
    except Refusal as refusal:
        raise renamed(refusal) from None
    if dropped:
        # What comes after may go to a lane that takes all of it.
        job = replace(job, request={**job.request, WHOLE: whole.model_dump(mode="json")["messages"]})
    asked = Asked(
        job_id=job.id,
        tenant_id=tenant.id,
        body=form.echo(),
        background=bool(form.background),
        stored=form.stored,
        previous_id=previous_id,
        instructions=form.instructions,
        dropped_tokens=dropped,
    )
    return job, asked


def count(preparer: Preparer, form: InputToCount, before: Sequence[Message]) -> int:
    """The tokens of the input that follows `before`, as truncation leaves it. Raises `Refusal`."""
    messages = messages_of(form, before)
    request = Request(kind=Kind.TICKET, model=form.model, messages=messages, windows=False)
    try:
        if form.truncation == "auto":
            request, _ = intake.truncated(preparer, request, None)
        _, tokens = preparer.counted(request)
    except Refusal as refusal:
        raise renamed(refusal) from None
    return tokens


def cancel(engine: Engine, announcer: Announcer, tenant_id: uuid.UUID, response_id: str) -> Found:
    """Cancel a response; one that has ended is answered as it is. Raises `Refusal` where there is none."""
    with engine.begin() as connection:
        response = kept(connection, tenant_id, response_id)
    try:
        detail = moves.cancel(engine, announcer, tenant_id, response.asked.job_id)
    except Refusal as refusal:
        if refusal.code is not Code.JOB_ENDED:
            raise not_found() from None
        with engine.begin() as connection:
            return kept(connection, tenant_id, response_id)
    return Found(response.asked, detail)


def delete(engine: Engine, announcer: Announcer, tenant_id: uuid.UUID, response_id: str) -> None:
    """Delete a response that is kept. Raises `Refusal` where there is none."""
    with engine.begin() as connection:
        job_id = kept(connection, tenant_id, response_id).asked.job_id
    drop(engine, announcer, tenant_id, job_id)


def drop(engine: Engine, announcer: Announcer, tenant_id: uuid.UUID, job_id: uuid.UUID) -> None:
    """Delete a response, if it is there still; one that has not ended is cancelled first."""
    with engine.begin() as connection:
        moved = store.delete(connection, tenant_id, job_id)
    if moved:
        moves.tell_cancelled(announcer, job_id, moved)


def not_found() -> Refusal:
    """The refusal for a response that the tenant does not have, whether or not another has it."""
    return Refusal(
        Code.RESPONSE_NOT_FOUND,
        "No such response",
        field="response_id",
        remedy="Responses are kept for a limited time, and not at all with store=false.",
    )
