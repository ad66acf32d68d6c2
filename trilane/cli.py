"""The root of the command line: a table of subcommands, each imported only when it is called."""

import importlib
from typing import Any

import click

# Name -> where the command lies, and its line in the help; so the help imports none of them.
COMMANDS: dict[str, tuple[str, str]] = {
    "demo": (
        "trilane.commands.demo:demo",
        "Run the example work on a local stack and show every job's times.",
    ),
    "up": ("trilane.commands.up:up", "Run the whole stack on this machine until Ctrl-C."),
    "submit": ("trilane.commands.client:submit", "Submit jobs from a file, JSONL or standard input."),
    "status": ("trilane.commands.client:status", "Show one job."),
    "wait": ("trilane.commands.client:wait", "Wait for a job and print its result."),
    "cancel": ("trilane.commands.client:cancel", "Cancel a job."),
    "tail": ("trilane.commands.client:tail", "Follow a job's text as it is generated."),
    "batch": ("trilane.commands.batch:batch", "Run a file of requests as a batch; wait, show, list, cancel."),
    "lanes": ("trilane.commands.client:lanes", "Show each lane's depth, throughput and latency."),
    "keys": ("trilane.commands.keys:keys", "Create, list and revoke API keys."),
    "migrate": ("trilane.commands.processes:migrate", "Move the database's schema up or down."),
    "api": ("trilane.commands.processes:api", "Run the HTTP API."),
    "worker": ("trilane.commands.processes:worker", "Run a worker that drains one or more lanes."),
    "control": ("trilane.commands.processes:control", "Run the control process: sweeps, feed, webhooks."),
    "beat": ("trilane.commands.processes:beat", "Run Celery beat for what can wait: retention."),
    "flower": ("trilane.commands.processes:flower", "Run Flower, Celery's monitoring pages."),
    "plan": ("trilane.commands.plan:plan", "Show which lane fits on which card, and what to change."),
    "precision-check": (
        "trilane.commands.precision:precision_check",
        "Compare a lane's answers with those of another lane's precision.",
    ),
    "bench": ("trilane.commands.bench:bench", "Measure the pipeline or the engine; print one JSON object."),
}


class Root(click.Group):
    """The group of all commands. Expected failures become one message, bugs keep their traceback."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table into the help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises `click.ClickException` in place of a failure that has a remedy."""
        try:
            return super().invoke(ctx)
        except Exception as error:  # The edge of the process: what is not explained is raised on.
            message = _explain(error)
            if message is None:
                raise
            raise click.ClickException(message) from None


def _explain(error: Exception) -> str | None:
    """What to tell the operator of a failure that is no bug; None for any other."""
    from jobs.settings import SettingsError
    from trilane.stack import StackError
    from workers.engines.registry import UnknownEngine
    from workers.guards.seam import GuardUnusable
    from workers.planning.plan import PlanRefused

    if isinstance(error, StackError | SettingsError | UnknownEngine | GuardUnusable | PlanRefused):
        return str(error)
    from redis.exceptions import ConnectionError as RedisAway

    from jobs.store.engine import is_away

    if is_away(error):
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        return f"the database does not answer: {reason}\nCheck TRILANE_DATABASE_URL, or run `trilane up`."
    if isinstance(error, RedisAway):
        return f"Redis does not answer: {error}\nCheck TRILANE_REDIS_URL, or run `trilane up`."
    return None


@click.group(cls=Root, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trilane")
def main() -> None:
    """Trilane: an asynchronous LLM job queue with one lane for each kind of work."""
