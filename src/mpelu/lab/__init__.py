"""The laboratory: the `mpelu` command and what it runs."""
