"""What was found, as files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError
from mpelu.lab.inspecting.figure import figure, png
from mpelu.lab.run import files


def make(folder: Path) -> None:
    """Makes the folder, with a UserError if that can't be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from error


def write(found: dict[str, Any], title: str, folder: Path) -> list[Path]:
    """Writes inspect.json and inspect.png, each whole or not at all.

    Args:
        found: as `collect` gives it.
        title: of the figure.
        folder: where they go.

    Raises:
        UserError: if they can't be written.
    """
    contents: dict[str, str | bytes] = {
        "inspect.json": json.dumps(found, allow_nan=False) + "\n",
        "inspect.png": png(figure(found, title)),
    }
    try:
        for name, content in contents.items():
            files.write(folder / name, content)
    except OSError as error:
        raise _refused(folder, error) from error
    return [folder / name for name in contents]


def _refused(folder: Path, error: OSError) -> UserError:
    return UserError(f"{folder}: can't be written: {error.strerror or error}")
