"""How commands print tables."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 80
"""Columns where the output doesn't go to a terminal and COLUMNS isn't set."""


def console() -> Console:
    """A console for tables: as wide as the terminal, or 80 columns if there is none."""
    from rich.console import Console

    is_file = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(highlight=False, width=FILE_WIDTH if is_file else None)
