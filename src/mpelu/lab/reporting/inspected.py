"""What `mpelu inspect` left in a run folder: the signal by depth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mpelu.lab.reporting.values import integer, number, objects, read_object, text

QUANTITIES = (
    "variance",
    "mean",
    "linear_share",
    "dead_share",
    "saturated_share",
    "never_positive_share",
    "gradient_norm",
)
MOST_LAYERS = 3000


def inspected(run: Path, problems: list[str]) -> dict[str, Any] | None:
    """Names and kinds of the layers, and a list for each of QUANTITIES that was measured.

    Args:
        run: the run folder.
        problems: gets a line if inspect.json is damaged.

    Returns:
        None if the run wasn't inspected.
    """
    path = run / "inspect.json"
    if not path.exists():
        return None
    try:
        found = read_object(path)
    except ValueError as error:
        problems.append(str(error))
        return None
    layers = objects(found.get("layers"))[:MOST_LAYERS]
    if not layers:
        problems.append("inspect.json: expected a list of layers, got none")
        return None
    measured = {name: [number(layer.get(name)) for layer in layers] for name in QUANTITIES}
    return {
        "which": text(found.get("which")),
        "images": integer(found.get("images")),
        "names": [text(layer.get("name"), "?") for layer in layers],
        "kinds": [text(layer.get("kind"), "?") for layer in layers],
        "measured": {
            name: values
            for name, values in measured.items()
            if any(value is not None for value in values)
        },
    }
