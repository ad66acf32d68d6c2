"""Turns a request into a job that can be stored: checked, its tokens counted, routed to a lane."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from jobs import targets
from jobs.domain import clock
from jobs.domain.jobs import PREFIX_CHARS, NewJob, Webhook, new_id, prefix_of
from jobs.domain.lanes import PromptTooLong, queue_name, route
from jobs.domain.requests import Message, Role, Sampling, to_json
from jobs.model_files import ModelFileMissing, smollm2_path
from jobs.secrets import Vault
from jobs.settings import Settings
from jobs.store.tenants import Tenant
from producer.refusals import Code, Refusal
from producer.request import DEFAULT_MAX_TOKENS, Request, WebhookTarget, parse, refusal_of
from producer.tokens import TokenCounter

MAX_KEY_CHARS = 255
T = TypeVar("T")

_MANY: TypeAdapter[list[Request]] = TypeAdapter(list[Request])


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A key of the caller's, and the hash of the payload that it is bound to."""

    key: str
    payload_hash: bytes

    def __post_init__(self) -> None:
        """Raise `Refusal` where the key cannot be kept."""
        if not 1 <= len(self.key) <= MAX_KEY_CHARS or not self.key.isprintable():
            raise Refusal(
                Code.INVALID_VALUE,
                f"An idempotency key is 1 to {MAX_KEY_CHARS} printable characters",
                field="Idempotency-Key",
                limit=MAX_KEY_CHARS,
                remedy="Use a UUID.",
            )


class Preparer:
    """Prepares jobs; safe in threads. It asks no database, but may look up a webhook's host."""

    def __init__(self, settings: Settings) -> None:
        """Open nothing yet. Raises `SettingsError` where the key for secrets is short."""
        self._settings, self._lanes = settings, settings.lanes
        self._vault = Vault(settings) if settings.secret_key else None
        self._counter = TokenCounter(_tokenizer_file(settings))

    def one(self, tenant: Tenant, request: Request | bytes, idempotency: Idempotency | None = None) -> NewJob:
        """The job of one request, a model or a JSON body. Raises `Refusal`."""
        try:
            checked = parse(request) if isinstance(request, bytes) else request
        except ValidationError as error:
            raise _refusal(error) from None
        if checked.webhook:
            self._check_target(checked.webhook.url)
        messages = _messages(checked, self._settings.api.max_messages)
        return self._job(tenant, checked, clock.now(), messages, self._counter.count(messages), idempotency)

    def many(self, tenant: Tenant, requests: Sequence[Request | Mapping[str, Any]]) -> list[NewJob]:
        """The jobs of many requests. Raises `Refusal`; its field begins with the request's position."""
        try:
            checked = _MANY.validate_python(list(requests))
        except ValidationError as error:
            raise _refusal(error) from None
        now, targets_seen = clock.now(), set[str]()

        def messages(request: Request) -> tuple[Message, ...]:
            return _messages(request, self._settings.api.max_messages)

        prompts = _each(messages, checked)
        counts = iter(zip(prompts, self._counter.count_many(prompts), strict=True))

        def job(request: Request) -> NewJob:
            if request.webhook and request.webhook.url not in targets_seen:
                self._check_target(request.webhook.url)
                targets_seen.add(request.webhook.url)
            return self._job(tenant, request, now, *next(counts))

        return _each(job, checked)

    def _job(
        self,
        tenant: Tenant,
        request: Request,
        now: datetime,
        messages: tuple[Message, ...],
        prompt_tokens: int,
        idempotency: Idempotency | None = None,
    ) -> NewJob:
        max_tokens = _max_tokens(request)
        lane = self._route(request, prompt_tokens, max_tokens)
        deadline = now + timedelta(seconds=request.deadline_s or self._lanes[lane].deadline_s)
        return NewJob(
            id=new_id(),
            tenant_id=tenant.id,
            kind=request.kind,
            model=self._model(request),
            lane=lane,
            priority=request.priority,
            queue=queue_name(lane, request.priority),
            request=to_json(messages, _sampling(request, max_tokens)),
            prompt_tokens=prompt_tokens,
            deadline=deadline,
            max_attempts=request.max_attempts,
            not_before=_not_before(request, now, deadline),
            prefix=prefix_of("\n".join(message.content[:PREFIX_CHARS] for message in messages)),
            metadata=request.metadata,
            webhook=self._webhook(request.webhook, tenant) if request.webhook else None,
            idempotency_key=idempotency.key if idempotency else None,
            payload_hash=idempotency.payload_hash if idempotency else None,
        )

    def _model(self, request: Request) -> str:
        served = self._settings.model
        if request.model not in (None, served):
            raise Refusal(
                Code.UNKNOWN_MODEL,
                "No such model is served",
                field="model",
                limit=served,
                remedy=f"Leave it out, or ask for {served}.",
            )
        return served

    def _route(self, request: Request, prompt_tokens: int, max_tokens: int) -> str:
        if request.lane is not None and request.lane not in self._lanes:
            names = ", ".join(self._lanes)
            raise Refusal(
                Code.UNKNOWN_LANE,
                "No such lane",
                field="lane",
                limit=names,
                remedy=f"Leave it out, or name one of {names}.",
            )
        try:
            return route(self._lanes, request.kind, prompt_tokens, max_tokens, request.lane)
        except PromptTooLong as refused:
            remedy = f"Send it to the {refused.fits} lane." if refused.fits else "Shorten the prompt."
            field = "prompt" if request.messages is None else "messages"
            message = str(refused)
            raise Refusal(
                Code.PROMPT_TOO_LONG,
                message[0].upper() + message[1:],
                field=field,
                limit=refused.limit,
                remedy=remedy,
            ) from None

    def _check_target(self, url: str) -> None:
        try:
            targets.check(url, self._settings.webhooks.allow)
        except targets.TargetRefused as refused:
            raise Refusal(
                Code.WEBHOOK_TARGET_REFUSED,
                f"Webhooks cannot be sent there: {refused.reason}",
                field="webhook.url",
                remedy="Give a public http(s) address, or have the operator allow its network.",
            ) from None

    def _webhook(self, webhook: WebhookTarget, tenant: Tenant) -> Webhook:
        if webhook.secret is None and tenant.signing_secret is None:
            raise Refusal(
                Code.WEBHOOK_UNSIGNED,
                "There is no secret to sign with",
                field="webhook.secret",
                remedy=f"Give one, or make the tenant's: trilane keys create --tenant {tenant.name}",
            )
        if self._vault is None:
            raise Refusal(
                Code.WEBHOOK_UNSIGNED,
                "Secrets cannot be kept here",
                field="webhook.secret",
                remedy="Have the operator set TRILANE_SECRET_KEY.",
            )
        sealed = self._vault.encrypt(webhook.secret) if webhook.secret else None
        return Webhook(webhook.url, tuple(dict.fromkeys(event.value for event in webhook.events)), sealed)


def _each(call: Callable[[Request], T], requests: Sequence[Request]) -> list[T]:
    """`call` of each request; a refusal's field begins with the request's position."""
    results = []
    for position, request in enumerate(requests):
        try:
            results.append(call(request))
        except Refusal as refusal:
            refusal.field = f"[{position}].{refusal.field}"
            raise
    return results


def _messages(request: Request, limit: int) -> tuple[Message, ...]:
    if (request.messages is None) == (request.prompt is None):
        given = "Both are given" if request.prompt is not None else "Neither is given"
        raise Refusal(
            Code.CONFLICTING_FIELDS if request.prompt is not None else Code.MISSING_FIELD,
            f"{given}: messages and prompt",
            field="messages",
            remedy="Give either messages or prompt.",
        )
    if request.messages is None:
        return (Message(Role.USER, request.prompt or ""),)
    if len(request.messages) > limit:
        raise Refusal(
            Code.TOO_LONG,
            f"The conversation has {len(request.messages)} messages",
            field="messages",
            limit=limit,
            remedy="Drop or join old messages.",
        )
    return tuple(Message(message.role, message.content) for message in request.messages)


def _max_tokens(request: Request) -> int:
    given = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(given) > 1:
        raise Refusal(
            Code.CONFLICTING_FIELDS,
            "max_tokens and max_completion_tokens differ",
            field="max_completion_tokens",
            remedy="Give one of them.",
        )
    return next((tokens for tokens in given if tokens), DEFAULT_MAX_TOKENS[request.kind])


def _sampling(request: Request, max_tokens: int) -> Sampling:
    return Sampling(
        max_tokens=max_tokens,
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=tuple(request.stop or ()),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
    )


def _not_before(request: Request, now: datetime, deadline: datetime) -> datetime | None:
    """When the job may start; None is at once, as is a time that has passed."""
    if request.not_before is None or request.not_before <= now:
        return None
    if request.not_before >= deadline:
        raise Refusal(
            Code.NOT_BEFORE_PAST_DEADLINE,
            "The job would expire before it may start",
            field="not_before",
            limit=deadline.isoformat(),
            remedy="Raise deadline_s, or let the job start earlier.",
        )
    return request.not_before


def _refusal(error: ValidationError) -> Refusal:
    return refusal_of(error.errors(include_url=False, include_input=False))


def _tokenizer_file(settings: Settings) -> Path | None:
    if settings.engine.model_path or settings.engine.name != "llamacpp":
        return settings.engine.model_path
    try:
        return smollm2_path()
    except ModelFileMissing:
        return None
