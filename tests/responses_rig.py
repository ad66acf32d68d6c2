"""Responses over HTTP: the official client, what their rows say, and a worker by hand."""

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI, Stream
from openai.types.responses import Response, ResponseStreamEvent
from sqlalchemy import text

from jobs.domain.jobs import Move
from jobs.domain.latency import LatencyRecord
from jobs.domain.outcomes import Choice, FinishReason, Usage
from jobs.live import LiveEvent
from jobs.store import records
from jobs.store.records import Answer, Ending
from tests.api import Api
from tests.waiting import until

MODEL = "SmolLM2-135M-Instruct"
ASKED = {"model": MODEL, "input": "What is a queue?", "background": True}
SLOW = 4.0  # a time scale of the sim engine: about 40 ms a token


class Rig:
    """A client of the official package, and a worker by hand for what it asks."""

    def __init__(self, api: Api) -> None:
        self.api, self.worker = api, api.worker()
        self.client = OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)

    def create(self, **given: Any) -> Response:
        """Create a background response, unless it is given otherwise."""
        asked: Any = ASKED | given
        found: Response = self.client.responses.create(**asked)
        return found

    def stream(self, **given: Any) -> Stream[ResponseStreamEvent]:
        """Create a response and get its events."""
        asked: Any = ASKED | given
        found: Stream[ResponseStreamEvent] = self.client.responses.create(**asked, stream=True)
        return found

    def leave(self, **given: Any) -> None:
        """Wait for a response, and leave once it is stored."""

        async def run() -> None:
            async with AsyncOpenAI(base_url=f"{self.api.url}/v1", api_key=self.api.key) as client:
                asked: Any = ASKED | {"background": False} | given
                waiting = asyncio.create_task(client.responses.create(**asked))
                await asyncio.to_thread(self.newest)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)

        asyncio.run(run())

    def job_of(self, response_id: str) -> str:
        """The job behind a response."""
        return str(uuid.UUID(hex=response_id.removeprefix("resp_")))

    def newest(self) -> str:
        """The id of the newest response that is stored."""
        return until(lambda: self.ids()[-1:], what="a stored response")[0]

    def ids(self) -> list[str]:
        """The ids of all responses that are stored, oldest first."""
        with self.api.engine.begin() as connection:
            rows = connection.execute(text("SELECT job_id FROM responses ORDER BY job_id"))
            return [f"resp_{row.job_id.hex}" for row in rows]

    def texts_left(self) -> int:
        """How many rows hold what was asked or answered."""
        with self.api.engine.begin() as connection:
            count = "SELECT (SELECT count(*) FROM responses) + (SELECT count(*) FROM results)"
            jobs = "(SELECT count(*) FROM jobs WHERE request <> '{}')"
            return int(connection.execute(text(f"{count} + {jobs}")).scalar_one())

    def column(self, response_id: str, name: str) -> Any:
        """What the job's row says in this column; None where there is no row."""
        with self.api.engine.begin() as connection:
            return connection.execute(
                text(f"SELECT {name} FROM jobs WHERE id = :id"), {"id": self.job_of(response_id)}
            ).scalar_one_or_none()

    def status(self, response_id: str) -> Any:
        """What the job's row says."""
        return self.column(response_id, "status")

    def turns(self, response_id: str) -> list[tuple[str, str]]:
        """The roles and texts that its engine is asked with."""
        messages = self.column(response_id, "request")["messages"]
        return [(turn["role"], turn["content"]) for turn in messages]

    def tell(self, response_id: str, event_id: str, event: LiveEvent, **data: Any) -> None:
        """Send a live event."""
        self.worker.tell(self.job_of(response_id), event_id, event, **data)

    def answer(self, response_id: str, output: str, **given: Any) -> None:
        """Claim it and answer it."""
        self.worker.claim(self.job_of(response_id))
        self.end(response_id, output, **given)

    def end(
        self,
        response_id: str,
        output: str,
        *,
        attempt: int = 1,
        reason: FinishReason = FinishReason.STOP,
        choices: tuple[Choice, ...] = (),
    ) -> None:
        """Answer what was claimed."""
        answer = Answer(output, reason, Usage(12, 4, 8), choices)
        ending = Ending(uuid.UUID(self.job_of(response_id)), attempt, Move.SUCCEED, _LATENCY, answer)
        with self.api.engine.begin() as connection:
            records.record(connection, [ending])
        self.worker.hint_end(self.job_of(response_id))

    def move(self, response_id: str, move: Move, **error: Any) -> None:
        """End the first attempt otherwise."""
        with self.api.engine.begin() as connection:
            ending = Ending(uuid.UUID(self.job_of(response_id)), 1, move, _LATENCY, **error)
            records.record(connection, [ending])
        self.worker.hint_end(self.job_of(response_id))


_LATENCY = LatencyRecord("succeeded", "warm", total_ms=12.5)


def refused(call: Callable[..., Any], *args: Any, **given: Any) -> openai.APIStatusError:
    """The error that the call raises."""
    with pytest.raises(openai.APIStatusError) as caught:
        call(*args, **given)
    return caught.value
