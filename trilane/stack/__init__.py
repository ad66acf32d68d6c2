"""The local stack: embedded servers and every part of Trilane as supervised child processes."""


class StackError(RuntimeError):
    """The stack cannot start or go on; the message says why and what to do."""
