"""The composed deployment: Docker Compose itself reads the files, and each command in them exists."""

import fnmatch
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from jobs.settings import load
from tests import command_lines
from tests.composed import FILES, ROOT, compose, of_trilane
from workers import launch

SECRETS = ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "FLOWER_PASSWORD", "TRILANE_SECRET_KEY")


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The services of docker-compose.yml as Docker Compose resolves them."""
    done = compose(tmp_path_factory.mktemp("compose"), FILES[0])
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = json.loads(done.stdout)["services"]
    return read


def test_all_parts_are_there(services: dict[str, Any]) -> None:
    lanes = {f"worker-{lane}" for lane in load().lanes}
    assert set(services) == {"postgres", "redis", "migrate", "api", "control", "beat", "flower"} | lanes


def test_commands_exist(services: dict[str, Any]) -> None:
    for service in of_trilane(services).values():
        command_lines.check(service["command"])


def test_each_worker_has_its_lane_and_its_gpu(services: dict[str, Any]) -> None:
    gpus = []
    for lane in load().lanes:
        worker = services[f"worker-{lane}"]
        assert worker["command"] == ["trilane", "worker", "--lane", lane, "--gpu", "0"]
        (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        gpus += device["device_ids"]
    assert len(set(gpus)) == len(gpus) == len(load().lanes)


def test_workers_may_end_their_jobs(services: dict[str, Any]) -> None:
    needed_s = load().lease.grace_s + launch._HANG_MARGIN_S
    for name in [*(f"worker-{lane}" for lane in load().lanes), "control"]:
        assert _seconds(services[name]["stop_grace_period"]) > needed_s, name


def test_what_runs_on_is_watched_and_restarted(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if name == "migrate":
            assert service["restart"] == "no"
        else:
            assert service["healthcheck"]["test"], name
            assert service["restart"] == "unless-stopped", name


def test_ports_are_open_on_loopback_only(services: dict[str, Any]) -> None:
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert set(ports) == {"api", "flower"}
    assert {port["host_ip"] for opened in ports.values() for port in opened} == {"127.0.0.1"}


def test_nothing_starts_before_its_schema(services: dict[str, Any]) -> None:
    for name, service in of_trilane(services).items():
        if name != "migrate":
            assert service["depends_on"]["migrate"]["condition"] == "service_completed_successfully", name


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_has_a_default(secret: str, tmp_path: Path) -> None:
    done = compose(tmp_path, FILES[0], without=secret)
    assert done.returncode != 0
    assert f"required variable {secret} is missing" in done.stderr


def test_env_example_names_every_variable() -> None:
    text = "".join((ROOT / file).read_text() for file in FILES)
    used = set(re.findall(r"\$\{(\w+)", text))
    named = set(re.findall(r"^#?([A-Z][A-Z0-9_]*)=", (ROOT / ".env.example").read_text(), re.M))
    assert named == used


def test_env_example_tells_the_defaults() -> None:
    text = "".join((ROOT / file).read_text() for file in FILES)
    defaults = set(re.findall(r"\$\{(\w+):-([^}]*)\}", text))
    assert set(re.findall(r"^#(\w+)=(.*)$", (ROOT / ".env.example").read_text(), re.M)) == defaults


def test_without_gpus_none_is_reserved(tmp_path: Path) -> None:
    done = compose(tmp_path, *FILES)
    assert done.returncode == 0, done.stderr
    assert not [
        name for name, service in json.loads(done.stdout)["services"].items() if service.get("deploy")
    ]


def test_a_further_worker_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    operations = (ROOT / "docs/operations.md").read_text()
    (override,) = re.findall(r"^```yaml\n(.*?)^```$", operations, re.M | re.S)
    for file in (FILES[0], "deploy/Dockerfile", ".env.example"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text((ROOT / file).read_text())
    (tmp_path / "docker-compose.override.yml").write_text(override)
    done = compose(tmp_path, FILES[0], "docker-compose.override.yml", root=tmp_path)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    (device,) = services["worker-hot-2"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["device_ids"] == ["3"]
    assert services["worker-hot-2"]["command"] == services["worker-hot"]["command"]
    assert services["worker-hot-2"]["depends_on"] == services["worker-hot"]["depends_on"]


def test_the_image_gets_every_package_and_runs_without_root() -> None:
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["setuptools"]["packages"]
    needed = [project["project"]["readme"], *project["project"]["license-files"], "requirements.txt"]
    for name in [*needed, *(package.partition(".")[0] for package in packages)]:
        assert any(fnmatch.fnmatch(name, pattern) for pattern in allowed), name
    dockerfile = (ROOT / "deploy/Dockerfile").read_text()
    assert re.findall(r"^USER (\w+)$", dockerfile, re.M) == ["10001"]


def test_every_package_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = set(project["tool"]["setuptools"]["packages"])
    tops = {package.partition(".")[0] for package in packages}
    found = {
        ".".join(file.parent.relative_to(ROOT).parts)
        for top in tops
        for file in (ROOT / top).rglob("__init__.py")
    }
    assert packages == found


def _seconds(duration: str) -> float:
    units = {"h": 3_600, "m": 60, "s": 1}
    return sum(int(count) * units[unit] for count, unit in re.findall(r"(\d+)([hms])", duration))
