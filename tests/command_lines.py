"""Checks `trilane ...` as documents and configurations write it against the commands that there are."""

from collections.abc import Sequence

import click

from trilane.cli import main


def check(argv: Sequence[str]) -> None:
    """Raise `click.UsageError` or `AssertionError` where the command line would be refused.

    Commands, options and the number of arguments are judged, not their values.
    """
    program, *rest = argv
    assert program == "trilane", argv
    command: click.Command = main
    context = click.Context(main, info_name=program)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"no command {name!r} in {' '.join(argv)!r}"
        command, context = found, click.Context(found, context, info_name=name)
    _, left, _ = command.make_parser(context).parse_args(list(rest))
    assert not left, f"{' '.join(argv)!r} has too many arguments: {left}"
