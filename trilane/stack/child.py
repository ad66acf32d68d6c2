"""The last step before a part's own program: its user, its niceness, and death together with its parent.

It runs as a file of its own under `python -I -S`, so it imports little and starts in a few milliseconds:

    child.py PARENT_PID DEATH_SIGNAL NICENESS USER PROGRAM [ARGUMENT ...]

USER is `-` to stay as we are. Doing this in a small program rather than between fork and exec keeps it
safe in a process with threads. Facts: prctl(2), capabilities(7), Linux; elsewhere only niceness and user.
"""

import ctypes
import os
import pwd
import sys
from collections.abc import Sequence

PR_SET_PDEATHSIG = 1
PR_SET_SECUREBITS = 28
SECBIT_NO_SETUID_FIXUP = 1 << 2
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAPABILITY_VERSION_3 = 0x20080522
CAP_DAC_OVERRIDE = 1


def wrapped(
    argv: Sequence[str], *, death_signal: int, niceness: int = 0, user: str | None = None
) -> list[str]:
    """The command line that runs `argv` through this file as a child of this process."""
    options = (os.getpid(), int(death_signal), niceness, user or "-")
    return [sys.executable, "-I", "-S", __file__, *map(str, options), *argv]


def main() -> None:
    """Prepare this process as the arguments say and become the program. Exits 1 if the parent is gone."""
    parent, death_signal, niceness, user, *argv = sys.argv[1:]
    if int(niceness):
        os.nice(int(niceness))
    if user != "-":
        _become(user)
    if sys.platform == "linux":
        # After the change of user, which would clear it. It holds through exec.
        _prctl(PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != int(parent):
        sys.exit(1)  # The parent died before the signal was set.
    os.execv(argv[0], argv)  # noqa: S606 - becoming the program is this file's purpose


def _become(user: str) -> None:
    """Drop root for `user`, keeping the right to walk through directories that only root may enter.

    PostgreSQL refuses to run as root, yet root's own directory, where its program and data may lie, is
    closed to others. One ambient capability opens the way without changing a mode of the user's directories.
    """
    entry = pwd.getpwnam(user)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    if sys.platform != "linux":
        os.setuid(entry.pw_uid)
        return
    try:
        # Without the fixup a change of user leaves capabilities alone, and access(2) minds them too.
        _prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP)
    except PermissionError:
        os.setuid(entry.pw_uid)  # A container of few rights: only paths that are open to all will do.
    else:
        os.setuid(entry.pw_uid)
        _keep_only(CAP_DAC_OVERRIDE)


def _keep_only(capability: int) -> None:
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    bit = 1 << capability
    # Effective, permitted, inheritable, for the capabilities 0-31, then for 32-63.
    sets = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if _libc().capset(header, sets):
        raise OSError(ctypes.get_errno(), "capset")
    _prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, capability)


def _prctl(option: int, *arguments: int) -> None:
    words = [ctypes.c_ulong(word) for word in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc().prctl(option, *words):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    main()
