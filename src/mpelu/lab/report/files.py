"""Files written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from mpelu.lab.errors import UserError


def write_atomically(path: Path, content: str) -> None:
    """Writes a file beside the path, then puts it in its place.

    Raises:
        UserError: if the folder or the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            beside.write_text(content, encoding="utf-8")
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from None
