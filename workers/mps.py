"""Puts a worker under CUDA's Multi-Process Service, so that lanes which share a card run on it side by side.

Facts: NVIDIA, "Multi-Process Service" (docs.nvidia.com/deploy/mps, appendices "Tools and Interface Reference"
and "Environment Variables") and nvidia-cuda-mps-control(1). A client's own bounds only tighten the daemon's,
and it reads them when it starts. The daemon must not inherit CUDA_VISIBLE_DEVICES: it would number the cards
anew, and a client that names its card by number would then get another one.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path

import structlog

from jobs.settings import MpsShare
from workers import card_lock
from workers.pinning import BUS_ORDER, ORDER

CONTROL = "nvidia-cuda-mps-control"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_BELOW_NORMAL = "1"
_START_TIMEOUT_S = 10.0
_LOOK_EVERY_S = 0.1
_ANSWER_TIMEOUT_S = 10.0

log = structlog.get_logger()


class MpsError(RuntimeError):
    """MPS cannot be used; the message says why, and the remedy."""


def join(share: MpsShare, cards: int, environ: MutableMapping[str, str] = os.environ) -> None:
    """Make this process a client with this share of each of its `cards`; the daemon is started if none runs.

    To be called before CUDA is initialised. Directories that the environment names are kept, for a daemon of
    the operator's own. Raises `MpsError`.
    """
    own = card_lock.private_directory()
    places = {_PIPES: str(own / "mps"), _LOGS: str(own / "mps-log")}
    environ.update({name: environ.get(name, default) for name, default in places.items()})
    environ.update(bounds(share, cards))
    _ensure_daemon(environ)
    log.info("mps.joined", pipes=environ[_PIPES], **share.model_dump())


def bounds(share: MpsShare, cards: int) -> dict[str, str]:
    """The variables that hold a client to its share.

    The memory limit names cards by the numbers that the client itself sees, from 0, as NVIDIA's fractioning
    plug-in for Kubernetes writes it.
    """
    values = {}
    if share.low_priority:
        values["CUDA_MPS_CLIENT_PRIORITY"] = _BELOW_NORMAL
    if share.active_thread_percentage is not None:
        values["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(share.active_thread_percentage)
    if share.device_memory_gib is not None:
        limit_mib = int(share.device_memory_gib * 1024)
        values["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(f"{card}={limit_mib}M" for card in range(cards))
    return values


def _ensure_daemon(environ: Mapping[str, str]) -> None:
    program = shutil.which(CONTROL, path=environ.get("PATH"))
    if program is None:
        raise MpsError(
            f"{CONTROL} is not on the PATH: install the driver's compute utilities, or take mps out of the"
            " [[workers]] entries of this card"
        )
    env = {name: value for name, value in environ.items() if not name.startswith("CUDA_")}
    env |= {ORDER: BUS_ORDER, _PIPES: environ[_PIPES], _LOGS: environ[_LOGS]}
    with card_lock.locked("mps"):
        if not _answers(program, env):
            _start_daemon(program, env)


def _start_daemon(program: str, env: Mapping[str, str]) -> None:
    for name in (_PIPES, _LOGS):
        Path(env[name]).mkdir(parents=True, exist_ok=True)
    said = Path(env[_LOGS]) / "start.log"  # no pipe: the daemon might hold it open for ever
    with said.open("w") as output:
        # In a session of its own: what ends this worker must not end the other workers' daemon.
        done = subprocess.run([program, "-d"], env=env, stdout=output, stderr=output, start_new_session=True)
    deadline = time.monotonic() + _START_TIMEOUT_S
    while done.returncode == 0 and time.monotonic() < deadline:
        if _answers(program, env):
            log.info("mps.started", pipes=env[_PIPES])
            return
        time.sleep(_LOOK_EVERY_S)
    reason = said.read_text(errors="replace").strip() or f"exit status {done.returncode}"
    raise MpsError(f"{CONTROL} -d did not start a daemon ({reason}): see the logs in {env[_LOGS]}")


def _answers(program: str, env: Mapping[str, str]) -> bool:
    """Whether a daemon answers at these pipes; the program's exit status says it."""
    try:
        asked = subprocess.run(
            [program],
            input="get_server_list\n",
            env=env,
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
