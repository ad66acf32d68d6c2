"""kombu's Redis transport as a worker of lanes needs it: cheap for each message, and no poll ever stale."""

# kombu has no types:
# mypy: allow-untyped-calls

import json
from contextlib import suppress
from queue import Empty
from typing import Any

import structlog
from kombu.transport import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

PATH = f"{__name__}:LaneTransport"

log = structlog.get_logger()


class LaneChannel(redis.Channel):
    """A channel that keeps one client, and whose poll can be ended at once.

    Popped messages are not mirrored in Redis until they are acknowledged (`ack_emulation`), nor put back
    when the channel goes (`do_restore`): leases, the service's own giving back and the sweeper protect
    the work, and two transactions for each message cost more than all the rest.
    """

    ack_emulation = False
    do_restore = False
    _own_client: Any = None

    @property
    def polls_some(self) -> bool:
        """Whether a poll is outstanding that leaves queues out, because their lanes had no free slot."""
        return bool(self._in_poll) and self._queue_cycle.partial

    def end_poll(self) -> bool:
        """End an outstanding poll as if it had timed out: no message is lost. False: it has yet to begin."""
        polling: Any = self._in_poll
        if not polling:
            return True
        greeting = polling.handshake_metadata
        return bool(self._create_client().client_unblock(greeting[b"id"]))

    def close(self) -> None:
        """Close without waiting for the poll's own end (1 s)."""
        if self.connection is not None:
            with suppress(*self.connection_errors):
                self.end_poll()
        super().close()

    def _brpop_read(self, **options: Any) -> Any:
        try:
            super()._brpop_read(**options)
        except json.JSONDecodeError as error:
            _tell_malformed(error)
            raise Empty from error
        self._take_more()
        return True

    def _take_more(self) -> None:
        """Take further messages of the same queue: a poll for each of them costs more than its work."""
        queue, wanted = self._queue_cycle.more()
        wanted = min(wanted, self.qos.can_consume_max_estimate())
        if wanted > 0:
            for message in self._create_client().rpop(queue, wanted) or ():
                try:
                    self.connection._deliver(json.loads(message), queue)
                except json.JSONDecodeError as error:
                    _tell_malformed(error)

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        # Protocol 3 greets with the connection's id, which `end_poll` needs. Celery reconnects by itself,
        # so redis-py must not sleep between tries in the consumer's thread.
        own = {"protocol": 3, "retry": Retry(NoBackoff(), 0)}
        return {**super()._connparams(asynchronous=asynchronous), **own}

    def _create_client(self, asynchronous: bool = False) -> Any:
        # kombu makes a client for each command, which costs more than the command.
        if asynchronous:
            return super()._create_client(asynchronous=True)
        if self._own_client is None or self._own_client.connection_pool is not self.pool:
            self._own_client = super()._create_client()
        return self._own_client


def _tell_malformed(error: json.JSONDecodeError) -> None:
    """Somebody's line that is no message must not end the worker."""
    log.error("message.malformed", error=error.msg)


class LaneTransport(redis.Transport):
    """The transport of a worker's connections."""

    Channel = LaneChannel
