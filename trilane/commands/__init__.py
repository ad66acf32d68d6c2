"""The subcommands, each imported only when it is called."""
