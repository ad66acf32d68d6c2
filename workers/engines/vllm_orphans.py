"""A plugin that vLLM loads in each of its processes: they end with the process that started them.

By itself vLLM's core outlives a parent that was killed, and keeps the card's memory.
"""

import os
import signal
import threading
from multiprocessing import connection, parent_process


def end_with_parent() -> None:
    """Watch the parent, if this process was started by another one's `multiprocessing`."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_watch, args=(parent.sentinel,), name="parent", daemon=True).start()


def _watch(sentinel: int) -> None:
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
