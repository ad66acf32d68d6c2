"""Sends due webhooks: takes rows under a lease, posts with bounds per receiver, settles in groups."""

import asyncio
import importlib.metadata
import random
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus

import httpx
import structlog
from sqlalchemy import Engine

from jobs import targets
from jobs.domain import clock
from jobs.secrets import Vault
from jobs.settings import Settings, SettingsError
from jobs.store import deliveries, endpoints
from jobs.store.deliveries import AttemptResult, DueDelivery
from jobs.store.endpoints import Attempted
from jobs.store.engine import is_away
from jobs.targets import Resolve
from workers import webhook_retries
from workers.webhook_places import Places
from workers.webhook_post import Answer, Poster, signed_headers

POLL_S = 0.5  # Rows come without a call too: from other processes, and when a retry falls due.
LEASE_MARGIN_S = 30.0  # To settle in, after the time limit of the attempt itself.
ABANDON_S = 1.0
LOOKUPS_PER_DELIVERY = 4  # A lookup that hangs keeps its thread after its attempt has ended.

_GONE = "the receiver is gone (410): nothing is sent there until a redelivery"
_DISABLED = "the endpoint is disabled: nothing is sent there until it is updated"

log = structlog.get_logger()

Ended = tuple[DueDelivery, AttemptResult]


class WebhookSender:
    """Sends webhooks from a thread and an event loop of its own. Any number of senders may run at once.

    One round is one transaction: it settles what ended and takes what is due. So while the database is
    away nothing is taken, and what ended is kept until it can be settled.
    """

    def __init__(
        self,
        settings: Settings,
        engine: Engine,
        resolve: Resolve = targets.resolve,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """One connection of `engine` is used at a time. `tls` None trusts the public authorities.

        Raises `SettingsError` without a secret key, or where an allowed network is none.
        """
        self._limits = settings.webhooks
        try:
            targets.networks(self._limits.allow)
        except ValueError as error:
            raise SettingsError(f"setting webhooks.allow: {error}") from None
        self._engine = engine
        self._vault = Vault(settings)
        self._lookups = ThreadPoolExecutor(
            self._limits.concurrency * LOOKUPS_PER_DELIVERY, thread_name_prefix="webhook-lookup"
        )
        self._database = ThreadPoolExecutor(1, thread_name_prefix="webhook-store")
        self._poster = Poster(self._limits, resolve, self._lookups, tls or httpx.create_ssl_context())
        self._user_agent = f"Trilane/{importlib.metadata.version('trilane')}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._woken = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self.stopping = False
        self._sending: set[asyncio.Task[None]] = set()
        self._places = Places(self._limits.per_host, slow_s=self._limits.timeout_s / 2)
        self._ended: list[Ended] = []

    def start(self) -> None:
        """Begin to send. Call it once."""
        self._thread.start()

    def wake(self) -> None:
        """Look for due webhooks now. Any thread may call it, at any time."""
        with suppress(RuntimeError):  # The loop is closed: there is nothing left to wake.
            self._loop.call_soon_threadsafe(self._woken.set)

    def stop(self, timeout_s: float) -> None:
        """Take nothing more and finish what is being sent; what outlasts `timeout_s` is sent again later."""
        self.stopping = True
        self.wake()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("webhook.abandoned", deliveries=len(self._sending) + len(self._ended))
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._abandon)
            self._thread.join(ABANDON_S)
        for pool in (self._lookups, self._database):
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner, suppress(asyncio.CancelledError):
            runner.run(self._rounds())

    def _abandon(self) -> None:
        if self._main:
            self._main.cancel()

    async def _rounds(self) -> None:
        self._main = asyncio.current_task()
        away = False
        while not (self.stopping and not self._sending and not self._ended):
            try:
                busy = await self._round()
                away = False
            except Exception as error:  # The edge of the loop: it outlives whatever one round meets.
                if not is_away(error):
                    log.exception("webhook.round_failed")
                elif not away:
                    log.warning("webhook.database_away")
                away = is_away(error)
                await asyncio.sleep(POLL_S)
                continue
            if not busy:
                await self._pause()

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._woken.wait()
        self._woken.clear()

    async def _round(self) -> bool:
        """Settle and take; whether there may be more to do at once."""
        ended = list(self._ended)
        free = 0 if self.stopping else self._limits.concurrency - len(self._sending)
        if not ended and not free:
            return False
        places = self._places.left(time.monotonic())
        try:
            taken = await self._loop.run_in_executor(self._database, self._exchange, ended, free, places)
        except Exception as error:
            if not is_away(error):
                # Trying them again would fail again, and stop all others: their leases run out instead.
                del self._ended[: len(ended)]
            raise
        del self._ended[: len(ended)]
        for delivery in taken:
            self._places.begin(delivery.host)
            task = self._loop.create_task(self._deliver(delivery))
            self._sending.add(task)
            task.add_done_callback(self._make_room)
        return bool(taken)

    def _exchange(self, ended: list[Ended], free: int, places: dict[str, int]) -> list[DueDelivery]:
        taken: list[DueDelivery] = []
        with self._engine.begin() as connection:
            # Endpoints before deliveries, as whoever deletes one locks them.
            disabled = endpoints.judge(connection, _attempted(ended), self._limits.disable_after_days)
            for _, result in sorted(ended, key=lambda one: one[1].delivery_id):
                deliveries.settle(connection, result)
            for delivery, result in ended:
                if result.status_code == HTTPStatus.GONE and delivery.endpoint_id is None:
                    deliveries.disable(connection, delivery.tenant_id, delivery.url, _GONE)
            if free:
                lease_s = self._limits.timeout_s + LEASE_MARGIN_S
                taken = deliveries.take_due(connection, free, lease_s, self._limits.per_host, places)
        for one in disabled:
            log.warning(
                "endpoint.disabled", endpoint_id=str(one.id), tenant_id=str(one.tenant_id), reason=one.reason
            )
        return taken

    async def _deliver(self, delivery: DueDelivery) -> None:
        started_at, start = clock.now(), time.monotonic()
        try:
            answer = await self._attempt(delivery, started_at)
        except Exception:  # The edge of the task: its place must come free, and its row be settled.
            log.exception("webhook.crashed", delivery_id=str(delivery.id))
            answer = Answer(error="the sender failed; see its log")
        end = time.monotonic()
        self._places.end(delivery.host, end, took_s=end - start)
        result = self._conclude(delivery, answer, started_at, duration_ms=(end - start) * 1_000)
        self._ended.append((delivery, result))

    def _make_room(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._woken.set()

    async def _attempt(self, delivery: DueDelivery, at: datetime) -> Answer:
        if delivery.disabled:
            return Answer(error=_GONE if delivery.endpoint_id is None else _DISABLED)
        stored = [secret for secret in (delivery.secret, delivery.old_secret) if secret]
        if not stored:
            return Answer(error="there is no secret to sign with")
        try:
            secrets = map(self._vault.decrypt, stored)
            signed = signed_headers(delivery.id, next(secrets), delivery.payload, at, *secrets)
        except ValueError as error:
            return Answer(error=str(error))
        headers = {"Content-Type": "application/json", "User-Agent": self._user_agent, **signed}
        return await self._poster.post(delivery.url, headers, delivery.payload.encode())

    def _conclude(
        self, delivery: DueDelivery, answer: Answer, started_at: datetime, duration_ms: float
    ) -> AttemptResult:
        gone = answer.status_code == HTTPStatus.GONE
        retry_in_s = None
        if not (gone or delivery.disabled or delivery.sample or answer.success):
            jitter = random.random()  # noqa: S311 - it spreads load and keeps no secret
            retry_in_s = webhook_retries.delay_s(
                delivery.tries, answer.retry_after, clock.now(), jitter, self._limits.retry_scale
            )
        log.info(
            "webhook.delivered" if answer.success else "webhook.failed",
            delivery_id=str(delivery.id),
            host=delivery.host,
            attempt=delivery.attempts,
            status_code=answer.status_code,
            error=answer.error,
            duration_ms=round(duration_ms, 1),
            retry_in_s=retry_in_s,
        )
        return AttemptResult(
            delivery.id,
            delivery.attempts,
            started_at,
            duration_ms,
            answer.status_code,
            _GONE if gone and delivery.endpoint_id is None else answer.error,
            answer.success,
            retry_in_s,
        )


def _attempted(ended: list[Ended]) -> Iterator[Attempted]:
    """What the attempts tell of endpoints; one that was not made and a test tell nothing."""
    for delivery, result in ended:
        if delivery.endpoint_id and not delivery.disabled and not delivery.sample:
            gone = result.status_code == HTTPStatus.GONE
            yield Attempted(delivery.endpoint_id, result.delivered, gone)
