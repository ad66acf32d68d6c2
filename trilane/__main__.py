"""Lets the parts of the local stack run as `python -m trilane`, whatever is on the path."""

from trilane.cli import main

main()
