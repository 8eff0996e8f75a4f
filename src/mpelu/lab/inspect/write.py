"""What was found, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.inspect.figure import figure, png
from mpelu.lab.train import files


def write(found: dict[str, Any], title: str, folder: Path) -> list[Path]:
    """Writes inspect.json and inspect.png, each whole or not at all.

    Args:
        found: as `collect` gives it.
        title: of the figure.
        folder: made if it isn't there.

    Raises:
        UserError: if they can't be written.
    """
    contents: dict[str, str | bytes] = {
        "inspect.json": json.dumps(found, allow_nan=False) + "\n",
        "inspect.png": png(figure(found, title)),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            files.write(folder / name, content)
    except OSError as error:
        raise UserError(f"{folder}: can't be written: {error.strerror or error}") from error
    return [folder / name for name in contents]
