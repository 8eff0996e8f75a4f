"""One module a subcommand: `add` puts it on the parser, its `run` imports what it needs."""
