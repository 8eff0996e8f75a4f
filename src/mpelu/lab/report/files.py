"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from mpelu.lab.errors import UserError


def write_atomically(path: Path, content: str) -> None:
    """Writes a file beside the path, then puts it in its place.

    Raises:
        UserError: if the folder or the file can't be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UserError(f"{path}: can't be written: {error.strerror}") from None
