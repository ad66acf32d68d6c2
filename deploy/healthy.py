#!/usr/bin/env python3
"""The containers' health check: `healthy http://...`, `healthy FILE` or `healthy worker`; exits 0 if it is.

An address has to answer 200. A file has to have been written within `FRESH_S` seconds. The worker (or
control process) of this host has to answer a ping through Redis.
"""

import sys
import time
import urllib.request
from pathlib import Path

FRESH_S = 900.0  # beat writes its schedule every few minutes
ANSWER_S = 3.0


def main(what: str) -> bool:
    """Whether that is healthy; an exception says no, too."""
    if what == "worker":
        return _pong()
    if what.startswith("http"):
        with urllib.request.urlopen(what, timeout=ANSWER_S) as response:  # noqa: S310 - the container's own
            return bool(response.status == 200)
    # Which files a dbm database lies in depends on the Python.
    schedule = Path(what)
    written = max(file.stat().st_mtime for file in schedule.parent.glob(f"{schedule.name}*"))
    return time.time() - written < FRESH_S


def _pong() -> bool:
    from celery.utils.nodenames import gethostname

    from jobs import broker, settings

    app = broker.create_app(settings.load())
    here = f"*@{gethostname()}"
    return bool(
        app.control.broadcast("ping", reply=True, timeout=ANSWER_S, limit=1, pattern=here, matcher="glob")
    )


if __name__ == "__main__":
    sys.exit(not main(sys.argv[1]))
