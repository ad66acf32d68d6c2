"""`trilane up`: the whole stack on this machine, until it is told to stop."""

import ipaddress
import signal
from contextlib import suppress
from pathlib import Path

import click

from jobs.domain.lanes import LANES
from trilane.stack import local


def _networks(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            ipaddress.ip_network(value)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write it like 127.0.0.1/32") from None
    return values


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=local.Options.data_dir,
    show_default=True,
    help="Where data, logs and secrets are kept.",
)
@click.option(
    "--engine",
    type=click.Choice(["llamacpp", "sim", "vllm"]),
    help="The engine of all workers.  [default: as settings say, else llamacpp]",
)
@click.option(
    "--lanes",
    multiple=True,
    metavar="LANE[,LANE...]",
    help="A worker process for these lanes; repeat it for more.  [default: those of [[workers]] in"
    f" trilane.toml, else one each for {', '.join(LANES)}]",
)
@click.option(
    "--webhook-allow",
    multiple=True,
    metavar="CIDR",
    callback=_networks,
    help="A private network that webhooks may reach, such as 127.0.0.1/32; repeat it for more.",
)
@click.option("--api-port", type=click.IntRange(0, 65_535), help="The API's port; 0: any.  [default: 8080]")
@click.option("--flower-port", type=click.IntRange(0, 65_535), help="Flower's port; 0: any.  [default: 5555]")
@click.option(
    "--ready-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write addresses, secrets and process ids there as JSON once everything is ready.",
)
def up(
    data_dir: Path,
    engine: str | None,
    lanes: tuple[str, ...],
    webhook_allow: tuple[str, ...],
    api_port: int | None,
    flower_port: int | None,
    ready_file: Path | None,
) -> None:
    """Run the whole stack on this machine until Ctrl-C.

    PostgreSQL and Redis are started too, unless TRILANE_DATABASE_URL and TRILANE_REDIS_URL name others.
    Jobs, results and keys stay in the data directory, so they are there at the next start.
    """
    options = local.Options(
        data_dir=data_dir,
        engine=engine,
        lanes=tuple(tuple(entry.split(",")) for entry in lanes) or None,
        webhook_allow=webhook_allow,
        api_port=api_port,
        flower_port=flower_port,
        ready_file=ready_file,
    )
    try:
        with local.interruptible(), local.running(options, _say) as stack:
            _say(_welcome(stack))
            signal.pause()
    except KeyboardInterrupt:
        _say("stopped")


def _say(line: str) -> None:
    with suppress(BrokenPipeError):  # A reader that left, such as `head`, must not stop the stack.
        click.echo(line)


def _welcome(stack: local.Stack) -> str:
    job = '{"kind": "chat", "messages": [{"role": "user", "content": "What is a queue?"}]}'
    return f"""
API     {stack.api}   (docs: {stack.api}/docs)
key     {stack.api_key}
Flower  {stack.flower}   (user {stack.flower_user}, password {stack.flower_password})
secret  webhooks are signed with what is in {stack.signing_secret}

Try it:
  curl -s {stack.api}/v1/jobs -H 'Authorization: Bearer {stack.api_key}' \\
    -H 'Content-Type: application/json' -d '{job}'

Ctrl-C stops everything."""
