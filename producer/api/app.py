"""Puts the API together, and serves it."""

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import Depends, FastAPI, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from jobs.broker import all_queues
from jobs.settings import Settings
from producer.api import errors, events, health, jobs, lanes, webhooks
from producer.api.auth import authenticate
from producer.api.guard import Guard
from producer.api.services import Services, Shared
from producer.openai import (
    batches_routes,
    chat_routes,
    files_routes,
    models_routes,
    responses_routes,
    webhook_endpoints_deliveries_routes,
    webhook_endpoints_routes,
)
from producer.openai.responses_form import CreateResponse
from producer.request import Request

SHUTDOWN_S = 5

_DESCRIPTION = """Send requests to a language model, and get answers later.

Each job runs in one of three lanes, so that short and long work do not wait for each other. Follow a job by
its events, by asking for it, or by webhooks. Every error has the same form, with a stable `code`."""


def create_app(settings: Settings) -> FastAPI:
    """The API as an ASGI app. It connects to the database and to Redis when they are needed, not before."""
    services = Services(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            async with services.hub.running():
                yield
        finally:
            await services.close()

    app = FastAPI(
        title="Trilane",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
        redoc_url=None,
    )
    app.state.services = services
    errors.install(app)
    app.add_middleware(Guard, metrics=services.metrics)
    for module in (
        jobs,
        events,
        webhooks,
        lanes,
        health,
        files_routes,
        batches_routes,
        responses_routes,
        chat_routes,
        models_routes,
        webhook_endpoints_routes,
        webhook_endpoints_deliveries_routes,
    ):
        app.include_router(module.router)
    # Behind an address that others reach, figures are for who has a key.
    app.get(
        "/metrics",
        tags=["operation"],
        response_class=Response,
        dependencies=[] if _is_loopback(settings.api.host) else [Depends(authenticate)],
    )(metrics)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way to extend it
    return app


def run_api(settings: Settings) -> None:
    """Serve the API at the address of the settings, until SIGTERM or SIGINT."""
    make_server(settings).run()


def make_server(settings: Settings) -> uvicorn.Server:
    """A server of the API that is not running yet."""
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.api.host,
        port=settings.api.port,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
    )
    return _Server(config, app.state.services)


class _Server(uvicorn.Server):
    """Ends the open streams when it is told to stop, instead of waiting for them."""

    def __init__(self, config: uvicorn.Config, services: Services) -> None:
        super().__init__(config)
        self._services = services

    async def shutdown(self, sockets: Any = None) -> None:
        """Stop accepting, end the streams, and let the other requests end."""
        self._services.hub.close()
        await super().shutdown(sockets)


async def metrics(services: Shared) -> Response:
    """Figures for Prometheus; what cannot be asked is left out."""
    try:
        snapshot = await services.snapshots.get()
    except SQLAlchemyError:
        snapshot = None
    depths = await services.run(services.announcer.depths, all_queues(services.settings))
    return Response(services.metrics.render(snapshot, depths), media_type=CONTENT_TYPE_LATEST)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _operation_id(route: APIRoute) -> str:
    return route.name


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the forms added whose routes read the body themselves."""
    if app.openapi_schema is None:
        document = FastAPI.openapi(app)
        for form in (Request, CreateResponse):
            schema = form.model_json_schema(ref_template="#/components/schemas/{model}")
            document["components"]["schemas"].update({**schema.pop("$defs"), form.__name__: schema})
        errors.document(document["paths"])
    return app.openapi_schema or {}
