"""The command line's root: its help is light, its table holds, and expected failures are one message."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from trilane.cli import COMMANDS, main


def test_the_help_names_every_command_and_imports_none_of_their_libraries() -> None:
    code = """
import sys
from trilane.cli import main
main(["--help"], standalone_mode=False)
print(sorted({"sqlalchemy", "celery", "redis", "pydantic", "fastapi"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    listed = {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
    assert set(COMMANDS) <= listed


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_exists_and_has_a_help_text(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.help
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["worker", "--lanes", "tepid"], {"TRILANE_REDIS_URL": "redis://127.0.0.1:1"}, "no lane 'tepid'"),
        (["api"], {"TRILANE_DATABASE_URL": ""}, "set TRILANE_DATABASE_URL"),
        (["flower"], {}, "FLOWER_BASIC_AUTH is missing"),
        (["migrate", "up"], {}, "the database does not answer"),
        (["api"], {"TRILANE_API__PORT": "many"}, "setting api.port"),
        (["up", "--webhook-allow", "10.0.0.0/99"], {}, "10.0.0.0/99"),
    ],
)
def test_a_failure_that_has_a_remedy_is_told_without_a_traceback(
    arguments: list[str], environment: dict[str, str], message: str
) -> None:
    env = {
        "TRILANE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
        "TRILANE_REDIS_URL": "redis://127.0.0.1:1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-m", "trilane", *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", **env},
    )
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
