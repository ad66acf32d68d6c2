"""The commands that each run one process of a deployment, and the one that moves its schema."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from jobs import logging
from jobs import settings as settings_module
from jobs.domain.lanes import LanePolicy
from jobs.settings import Settings, SettingsError, WorkerPlacement
from trilane.stack import ports


def _cards(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[int, ...]:
    names = [name.strip() for value in values for name in value.split(",")]
    for name in names:
        if not name.isdigit():
            raise click.BadParameter(f"{name!r} is no card's number; they start at 0, see nvidia-smi -L")
    return tuple(map(int, names))


@click.command()
@click.option("--lane", "--lanes", "lanes", help="Lanes to drain, joined by commas.  [default: all]")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    metavar="N[,N...]",
    callback=_cards,
    help="The card to run on, by its number in nvidia-smi; several for a model that is spread over them."
    "  [default: whatever the process sees]",
)
@click.option("--model", help="One of the settings model and models.  [default: the setting model]")
@click.option("--engine", help="llamacpp, sim or vllm.  [default: the setting engine.name]")
def worker(lanes: str | None, gpus: tuple[int, ...], model: str | None, engine: str | None) -> None:
    """Run a worker: load the engine, then drain the lanes until SIGTERM.

    With one lane it has the engine to itself; with several, hot passes warm passes cold. What an entry of
    [[workers]] says of exactly these lanes, cards and model holds here too.
    """
    settings = _settings()
    model = model or settings.model
    if model not in settings.served:
        raise click.BadParameter(f"no model {model!r}; served are {', '.join(settings.served)}")
    serving = settings.lanes_of(model)
    wanted = [name.strip() for name in lanes.split(",")] if lanes else list(serving)
    unknown = [name for name in wanted if name not in serving]
    if unknown:
        raise click.BadParameter(f"no lane {unknown[0]!r}; the lanes are {', '.join(serving)}")
    placement = settings.placement(wanted, gpus, model)
    engine = engine or placement.engine or settings.engine.name
    policies = [lane for name, lane in settings.lanes.items() if name in wanted]
    _prepare(placement, policies, warms_up=settings.engine.warms_up(engine))
    if engine == "vllm":
        _check_plan(settings, placement)
    further, settings = settings.further(model), settings.of_model(model)
    if placement.model_path:
        own = settings.engine.model_copy(update={"model_path": placement.model_path})
        settings = settings.model_copy(update={"engine": own})
    if further and engine == "llamacpp" and settings.engine.model_path is None:
        raise SettingsError(f"setting models.{further}.model_path is missing: name its GGUF file")
    from workers import worker as lane_worker

    sys.exit(lane_worker.run(settings, wanted, engine, further))


def _prepare(placement: WorkerPlacement, policies: Sequence[LanePolicy], warms_up: bool) -> None:
    """Bind this process to its cards before anything that uses CUDA is imported, and see what it will read.

    `policies` are the lanes' in rank order: the first lane's is the engine's.
    """
    from workers import mps, pinning, warm_up_prompts
    from workers.card_lock import PrivateDirectoryError

    try:
        if placement.gpus:
            pinning.pin(placement.gpus, policies[0])
        if placement.mps:
            mps.join(placement.mps, len(placement.gpus))
        for policy in policies if warms_up else ():
            warm_up_prompts.templates(policy)  # now, not after minutes of loading
    except (
        pinning.PinningError,
        mps.MpsError,
        warm_up_prompts.TemplatesError,
        PrivateDirectoryError,
    ) as error:
        raise click.ClickException(str(error)) from None


def _check_plan(settings: Settings, placement: WorkerPlacement) -> None:
    """Raise `PlanRefused` where vLLM would not fit the cards that this process is bound to."""
    from workers import pinning
    from workers.planning import plan

    plan.check(settings, placement.model_copy(update={"gpus": pinning.pinned()}))


@click.command()
def api() -> None:
    """Run the HTTP API at the address that the settings api.host and api.port name, its docs at /docs."""
    settings = _settings()
    from producer.api.app import run_api

    run_api(settings)


@click.command()
def control() -> None:
    """Run the control process: sweeps, feed, batches and webhooks. Two at once do no harm."""
    from producer.openai.batch_lines import OpenAIBatches
    from workers import control as control_process

    settings = _settings()
    sys.exit(control_process.run(settings, OpenAIBatches(settings)))


@click.command()
@click.option(
    "--schedule",
    type=click.Path(dir_okay=False, path_type=Path),
    default="celerybeat-schedule",
    show_default=True,
    help="File that keeps when each entry last ran.",
)
def beat(schedule: Path) -> None:
    """Run Celery beat, which schedules only what can wait. Run one."""
    from jobs.broker import create_app

    app = create_app(_settings())
    app.Beat(loglevel="INFO", schedule=str(schedule), pidfile=None, quiet=True).run()


@click.command()
@click.option("--address", default=ports.HOST, show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65_535), default=5555, show_default=True, help="Port.")
def flower(address: str, port: int) -> None:
    """Run Flower with our queues. FLOWER_BASIC_AUTH=user:password must be set."""
    if not os.environ.get("FLOWER_BASIC_AUTH"):
        # On the command line every user of the machine could read it.
        raise SettingsError(
            "FLOWER_BASIC_AUTH is missing: set it to user:password, Flower is not served without one"
        )
    from jobs.broker import create_app

    options = (f"--address={address}", f"--port={port}", "--max_tasks=10000", "--purge_offline_workers=60")
    create_app(_settings()).start(["--quiet", "flower", *options])


@click.group()
def migrate() -> None:
    """Move the database's schema up or down."""


@migrate.command()
@click.argument("revision", default="head")
def up(revision: str) -> None:
    """Bring the schema up to REVISION (default: the newest)."""
    from jobs.store.engine import open_engine
    from migrations import commands

    commands.upgrade(open_engine(_settings(needs_redis=False).database_url), revision)
    click.echo(f"the schema is at {revision}")


@migrate.command()
@click.argument("revision", default="base")
@click.confirmation_option(prompt="Tables will be dropped with what is in them. Go on?")
def down(revision: str) -> None:
    """Take the schema down to REVISION (default: nothing). Data of what is dropped is lost."""
    from jobs.store.engine import open_engine
    from migrations import commands

    commands.downgrade(open_engine(_settings(needs_redis=False).database_url), revision)
    click.echo(f"the schema is at {revision}")


def _settings(needs_redis: bool = True) -> Settings:
    """The settings, checked; from here on what happens is logged."""
    logging.configure()
    settings = settings_module.load()
    if needs_redis:
        settings_module.require_servers(settings)
    elif not settings.database_url:
        raise SettingsError("setting database_url is missing: set TRILANE_DATABASE_URL")
    return settings
