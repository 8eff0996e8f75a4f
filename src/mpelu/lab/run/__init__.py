"""The run folder: its files, their names, and how they are written and read."""
