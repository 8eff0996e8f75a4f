"""Where the report's files go."""

from __future__ import annotations

from pathlib import Path

from mpelu.lab.errors import UserError
from mpelu.lab.run import files


def write_page(path: Path, content: str) -> None:
    """Writes a file whole or not at all, and its folder if need be.

    Raises:
        UserError: if it can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content, durable=False)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from None
