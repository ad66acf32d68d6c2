"""Puts a lane worker together: its engine, its service, and the Celery worker that feeds it."""

import os
import socket
from collections.abc import Sequence
from dataclasses import replace

import structlog

from jobs.domain.jobs import new_id
from jobs.domain.lanes import slug
from jobs.settings import Settings
from workers.engine_watch import EngineWatch
from workers.engines import registry
from workers.engines.registry import EngineConfig
from workers.engines.seam import Engine
from workers.lane_service import LaneService
from workers.launch import run_worker
from workers.planning.merging import merged
from workers.speculation_watch import Memory

log = structlog.get_logger()


def build_engine(settings: Settings, lanes: Sequence[str], name: str | None = None) -> Engine:
    """The engine that a worker of `lanes` (in rank order) loads; `name` None takes the setting.

    Raises `workers.engines.registry.UnknownEngine`, or what the engine itself refuses.
    """
    return registry.build(name or settings.engine.name, _config(settings, lanes))


def _config(settings: Settings, lanes: Sequence[str]) -> EngineConfig:
    policies = [settings.lanes[lane] for lane in lanes]
    policy = merged(policies)
    if policy.speculation and Memory(settings.redis_url, settings.model, lanes).is_off(policy.speculation):
        log.warning("speculation.stays_off", lanes=list(lanes), model=settings.model)
        policy = replace(policy, speculation=None)
    return EngineConfig(
        settings.model,
        slots=max(policy.most_limit for policy in policies),
        max_model_len=max(policy.max_model_len for policy in policies),
        model_path=settings.engine.model_path,
        threads=settings.engine.threads,
        policy=policy,
        options=settings.engine.options,
    )


def run(
    settings: Settings, lanes: Sequence[str], engine_name: str | None = None, model: str | None = None
) -> int:
    """Drain `lanes` until SIGTERM; returns the process's exit code. Raises as `build_engine` does.

    `settings` are those of the model; `model` names it where it is a further one, with queues of its own.
    """
    ranked = [lane for lane in settings.lanes if lane in lanes]
    config = _config(settings, ranked)
    engine = registry.build(engine_name or settings.engine.name, config)
    name = "-".join((*ranked, *([slug(model)] if model else []), new_id().hex[-8:]))
    known_as = f"{name}@{socket.gethostname()}:{os.getpid()}"
    memory = Memory(settings.redis_url, settings.model, ranked)
    watch = EngineWatch(engine, config.policy.speculation, memory)
    service = LaneService(settings, ranked, engine, known_as, watch)
    status = run_worker(settings, lanes=ranked, service=service, name=name, model=model)
    return status or int(service.failed)
