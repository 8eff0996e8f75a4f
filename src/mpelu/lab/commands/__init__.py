"""One module per subcommand.

Each has `add`, which adds its parser and options, and `run`, which imports what it needs. The
table `mpelu.lab.cli.COMMANDS` lists them.
"""
