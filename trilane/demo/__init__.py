"""The demo: the example work on a stack of its own, followed live and accounted for."""
