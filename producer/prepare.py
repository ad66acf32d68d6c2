"""Turns a request into a job that can be stored: checked, its tokens counted, routed to a lane."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar

from pydantic import TypeAdapter, ValidationError

from jobs import targets
from jobs.domain import clock
from jobs.domain.jobs import PREFIX_CHARS, NewJob, Webhook, new_id, prefix_of
from jobs.domain.lanes import queue_name
from jobs.domain.requests import Message, Role, Sampling, to_json
from jobs.secrets import Vault
from jobs.settings import Settings
from jobs.store.tenants import Tenant
from producer import served
from producer.refusals import Code, Refusal
from producer.request import DEFAULT_MAX_TOKENS, Request, WebhookTarget, parse, refusal_of
from producer.served import Models, Prompt

MAX_KEY_CHARS = 255
P = ParamSpec("P")
T = TypeVar("T")

_MANY: TypeAdapter[list[Request]] = TypeAdapter(list[Request])


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A key of the caller's, and the hash of the payload that it is bound to."""

    key: str
    payload_hash: bytes

    @classmethod
    def of(cls, key: str | None, route: str, body: bytes) -> "Idempotency | None":
        """A key for one body on one route, such as `POST /v1/jobs`. Raises `Refusal`."""
        return None if key is None else cls(key, hashlib.sha256(route.encode() + b"\n" + body).digest())

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

    @staticmethod
    def conflict(made: str) -> Refusal:
        """The refusal of a key that another payload was sent with before, which made `made`."""
        return Refusal(
            Code.IDEMPOTENCY_CONFLICT,
            f"The key was used for another payload, which made {made}",
            field="Idempotency-Key",
            remedy="Use a new key for a new request.",
        )


class Preparer:
    """Prepares jobs; safe in threads. It asks no database, but may look up a webhook's host."""

    def __init__(self, settings: Settings) -> None:
        """Open nothing yet. Raises `SettingsError` where the key for secrets is short."""
        self._settings = settings
        self._vault = Vault(settings) if settings.secret_key else None
        self.models = Models(settings)

    def one(self, tenant: Tenant, request: Request | bytes, idempotency: Idempotency | None = None) -> NewJob:
        """The job of one request, a model or a JSON body. Raises `Refusal`."""
        try:
            checked = parse(request) if isinstance(request, bytes) else request
        except ValidationError as error:
            raise _refusal(error) from None
        if checked.webhook:
            self._check_target(checked.webhook.url)
        return self.job(tenant, checked, *self.counted(checked), idempotency)

    def many(self, tenant: Tenant, requests: Sequence[Request | Mapping[str, Any]]) -> list[NewJob]:
        """The jobs of many requests. Raises `Refusal`; its field begins with the request's position."""
        try:
            checked = _MANY.validate_python(list(requests))
        except ValidationError as error:
            raise _refusal(error) from None
        jobs = []
        for position, job in enumerate(self.each(tenant, checked)):
            if isinstance(job, Refusal):
                job.field = f"[{position}].{job.field}"
                raise job
            jobs.append(job)
        return jobs

    def each(self, tenant: Tenant, requests: Sequence[Request]) -> list[NewJob | Refusal]:
        """The job of each request, or why there is none; the tokens of all are counted at once."""
        targets_seen = set[str]()
        prompts = [_tried(self._prompt, request) for request in requests]
        counts = served.counts([prompt for prompt in prompts if not isinstance(prompt, Refusal)])

        def job(request: Request, prompt: Prompt) -> NewJob:
            prompt_tokens = next(counts)
            if request.webhook and request.webhook.url not in targets_seen:
                self._check_target(request.webhook.url)
                targets_seen.add(request.webhook.url)
            return self.job(tenant, request, prompt, prompt_tokens)

        return [
            prompt if isinstance(prompt, Refusal) else _tried(job, request, prompt)
            for request, prompt in zip(requests, prompts, strict=True)
        ]

    def counted(self, request: Request) -> tuple[Prompt, int]:
        """The prompt of a request, and its tokens. Raises `Refusal`."""
        prompt = self._prompt(request)
        return prompt, prompt.model.counter.count(prompt.messages)

    def job(
        self,
        tenant: Tenant,
        request: Request,
        prompt: Prompt,
        prompt_tokens: int,
        idempotency: Idempotency | None = None,
    ) -> NewJob:
        """The job of a request whose prompt is counted, its webhook's host checked. Raises `Refusal`."""
        now = clock.now()
        sampling, model, messages = _sampling(request), prompt.model, prompt.messages
        lane, note = model.router.route(request, sampling, messages, prompt_tokens)
        deadline = now + timedelta(seconds=request.deadline_s or model.lanes[lane].deadline_s)
        return NewJob(
            id=new_id(),
            tenant_id=tenant.id,
            kind=request.kind,
            model=model.name,
            lane=lane,
            priority=request.priority,
            queue=queue_name(lane, request.priority, model.in_queues),
            request=to_json(messages, sampling) | ({"routed": note} if note else {}),
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

    def _prompt(self, request: Request) -> Prompt:
        return Prompt(self.models.find(request.model), _messages(request, self._settings.api.max_messages))

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


def _tried(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Refusal:
    """What `call(...)` answers, or the refusal that it raises."""
    try:
        return call(*args, **kwargs)
    except Refusal as refusal:
        return refusal


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


def _sampling(request: Request) -> Sampling:
    if request.top_logprobs is not None and not request.logprobs:
        raise Refusal(
            Code.MISSING_FIELD,
            "top_logprobs needs logprobs",
            field="logprobs",
            remedy="Set logprobs to true, or leave top_logprobs out.",
        )
    if request.n > 1 and request.temperature == 0:
        raise Refusal(
            Code.CONFLICTING_FIELDS,
            "With temperature 0 all answers would be the same",
            field="n",
            remedy="Ask for one answer, or raise the temperature.",
        )
    return Sampling(
        max_tokens=_max_tokens(request),
        temperature=request.temperature,
        top_p=request.top_p,
        seed=request.seed,
        stop=tuple(request.stop or ()),
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        top_k=request.top_k,
        min_p=request.min_p,
        n=request.n,
        logprobs=request.logprobs or None,
        top_logprobs=request.top_logprobs,
        logit_bias=request.logit_bias or None,
        bad_words=tuple(request.bad_words or ()),
        response_format=request.response_format.stored() if request.response_format else None,
        windows=request.windows,
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
