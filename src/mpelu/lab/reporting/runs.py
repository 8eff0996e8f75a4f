"""What the page shows of one run folder, as plain values. Damaged files become problems."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.plots import color_name
from mpelu.lab.reporting.curves import learning_curves
from mpelu.lab.reporting.learned import learned_histograms
from mpelu.lab.reporting.values import integer, number, objects, text
from mpelu.lab.run import folder
from mpelu.lab.run.folder import Run

QUANTITIES = (
    "variance",
    "signal",
    "mean",
    "gradient",
    "positive",
    "dead",
    "saturated",
    "linear",
    "never_positive",
)
"""The quantities of an inspection that are plotted by depth."""
MOST_LAYERS = 3000


def read_run(path: Path) -> dict[str, Any]:
    """The entry of a run folder, as the page's scripts read it."""
    problems: list[str] = []
    try:
        run = folder.read(path)
    except (UserError, OSError) as error:
        # An entry like any other, so that the page shows that the run is there.
        run = Run(
            path=path, config={}, status={}, environment={}, data={}, steps=[], tests=[],
            problems=(one_line(error).removeprefix(f"{path}: "),),
        )  # fmt: skip
    problems += [text(line) for line in run.problems]
    status, config = run.status, run.config
    activation = config.get("convert") or config.get("activation")
    return {
        "state": status["state"] if status.get("state") in folder.STATES else "unknown",
        "message": text(status.get("message")),
        "step": integer(status.get("step")),
        "steps": integer(status.get("steps")),
        "updated": number(status.get("updated"), digits=12),
        "test_error": number(status.get("test_error")),
        "validation_error": number(status.get("validation_error")),
        "best_error": number(status.get("best_error")),
        "best_step": integer(status.get("best_step")),
        "model": text(config.get("model")),
        "activation": text(activation),
        "color": color_name(activation),
        "init": text(config.get("init")),
        "data": _data_set(config),
        "lr": number(config.get("lr")),
        "epochs": integer(config.get("epochs")),
        "seed": integer(config.get("seed")),
        "speed": _speed(path),
        "curves": learning_curves(run),
        "inspected": _inspected(path, problems),
        "learned": learned_histograms(path, problems),
        "problems": problems,
    }


def _data_set(config: dict[str, Any]) -> str:
    """The name of the data set; for images in a directory, the name of the directory."""
    name, directory = text(config.get("data")), text(config.get("data_dir"))
    return f"{Path(directory).name}/" if name == "folder" and directory else name


def _speed(path: Path) -> float | None:
    """Median images per second, or None if nothing was logged."""
    rows, _ = folder.read_log(path, folder.SPEED)
    found = [number(row.get("images_per_second")) for row in rows]
    speeds = [each for each in found if each is not None]
    return number(statistics.median(speeds), digits=3) if speeds else None


def _inspected(path: Path, problems: list[str]) -> dict[str, Any] | None:
    """Names and kinds of layers, and a list per quantity; None if the run wasn't inspected."""
    inspection = path / folder.INSPECTION
    if not inspection.exists():
        return None
    try:
        found = files.read_json(inspection)
    except ValueError as error:
        problems.append(text(str(error)))
        return None
    layers = objects(found.get("layers"))[:MOST_LAYERS]
    if not layers:
        problems.append(f"{inspection.name}: expected a list of layers, got none")
        return None
    measured = {name: [number(layer.get(name)) for layer in layers] for name in QUANTITIES}
    return {
        "images": integer(found.get("images")),
        "names": [text(layer.get("name"), "?") for layer in layers],
        "kinds": [text(layer.get("kind"), "?") for layer in layers],
        "measured": {
            name: values
            for name, values in measured.items()
            if any(value is not None for value in values)
        },
    }
