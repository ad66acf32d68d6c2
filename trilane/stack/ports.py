"""Ports on loopback: a free one, or the one that was asked for."""

import random
import socket

from trilane.stack import StackError

HOST = "127.0.0.1"

# Below the range that systems use for outgoing connections, so a port stays free until its part binds it.
_RANGE = (15_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of the loopback address now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free() -> int:
    """A port on loopback that nobody listens on. Raises `StackError` if there seems to be none."""
    for _ in range(1_000):
        port = random.randint(*_RANGE)  # noqa: S311 - no secret, only unlikely to be tried by another stack
        if is_free(port):
            return port
    raise StackError(f"no free port found between {_RANGE[0]} and {_RANGE[1]} on {HOST}")


def choose(asked: int | None, default: int, option: str) -> int:
    """The port asked for (0: any free one), else the default, else a free one if the default is busy.

    Raises `StackError` if the port asked for with `option` is busy.
    """
    if asked == 0:
        return free()
    if asked is None:
        return default if is_free(default) else free()
    if not is_free(asked):
        raise StackError(f"port {asked} is in use: end what listens there, or give another {option}")
    return asked
