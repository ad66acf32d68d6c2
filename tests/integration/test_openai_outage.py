"""The database goes away while clients wait: they get their answers, and what they leave does not go on."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI
from sqlalchemy import text

from jobs.settings import Settings
from jobs.store import reads
from jobs.store.tenants import Tenant
from producer.api.services import Services
from producer.openai.following import Ended, end_of
from tests.api import Api
from tests.conftest import Servers
from tests.responses_rig import ASKED, MODEL, Rig
from tests.waiting import until

_HELLO: Any = [{"role": "user", "content": "Hello"}]

Away = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def away(servers: Servers, settings: Settings) -> Away:
    """A way to have nobody reach the test's database."""
    name = settings.database_url.rpartition("/")[2]

    @contextmanager
    def closed() -> Iterator[None]:
        servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        servers.admin(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            yield
        finally:
            servers.admin(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")

    return closed


@pytest.fixture
def rig(api: Api) -> Rig:
    return Rig(api)


def statuses(api: Api) -> list[str]:
    """How the jobs stand."""
    with api.engine.begin() as connection:
        return list(connection.execute(text("SELECT status FROM jobs ORDER BY id")).scalars())


def test_what_is_left_while_the_database_is_away_is_cancelled_once_it_is_back(rig: Rig, away: Away) -> None:
    async def leave() -> None:
        async with AsyncOpenAI(base_url=f"{rig.api.url}/v1", api_key=rig.api.key, max_retries=0) as client:
            foreground: Any = ASKED | {"background": False}
            waiting = [
                asyncio.create_task(client.chat.completions.create(model=MODEL, messages=_HELLO)),
                asyncio.create_task(client.responses.create(**foreground)),
                asyncio.create_task(client.responses.create(**foreground, store=False)),
            ]
            await asyncio.to_thread(until, lambda: rig.api.rows() == len(waiting), what="the jobs")
            with away():
                for task in waiting:
                    task.cancel()
                await asyncio.gather(*waiting, return_exceptions=True)
                tasks = rig.api.server.server_state.tasks
                await asyncio.to_thread(until, lambda: not tasks, what="the end of the requests")

    asyncio.run(leave())
    until(lambda: statuses(rig.api) == ["cancelled"] * 3, what="the cancels")
    until(lambda: len(rig.ids()) == 1, what="the deletion of what is not stored")


def test_who_waits_is_answered_once_the_database_is_back(
    settings: Settings, tenant: Tenant, rig: Rig, away: Away
) -> None:
    response = rig.create()
    with rig.api.engine.begin() as connection:
        [job] = reads.listing(connection, tenant.id, reads.Filter(), 1)

    async def wait() -> Ended:
        services = Services(settings)
        async with services.hub.running():
            with away():
                waiting = asyncio.create_task(end_of(services, job))
                await asyncio.to_thread(until, lambda: rig.worker.listeners(str(job.id)), what="the wait")
            await asyncio.to_thread(rig.answer, response.id, "A line.")
            ended = await waiting
        await services.close()
        return ended

    detail = asyncio.run(wait()).detail
    assert detail is not None and detail.result is not None
    assert detail.result["output"] == "A line."
