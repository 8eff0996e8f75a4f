"""What the page shows of one run folder, as plain values. Damaged files become problems."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab import files
from mpelu.lab.errors import UserError, one_line
from mpelu.lab.plots import color_name
from mpelu.lab.reporting.values import (
    LARGEST,
    Curve,
    curve,
    integer,
    natural,
    number,
    objects,
    text,
)
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.run.folder import Run

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[np.float64]]
    """Finite values by name."""

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
BINS = 40
MOST_EPOCHS = 10
"""At most this many snapshots are shown: the first, the last, and others evenly between."""
MOST_KINDS = 12
"""At most this many kinds of parameters are shown."""


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
        "curves": _curves(run),
        "inspected": _inspected(path, problems),
        "learned": _learned(path, problems),
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


def _curves(run: Run) -> dict[str, Any]:
    """Test error, or validation error if there is one, and training loss over training steps.

    The training loss is the mean since the previous test. A run with fewer than two tests has the
    losses of the logged steps instead.

    Returns:
        test_error and train_loss, curves over steps; on, which of "test" and "validation" the
        error was measured on; epoch_length, in steps, or None for a run counted in iterations;
        rows, the number of logged rows behind the curves.
    """
    tested = _curve(run.tests, "train_loss")
    validated = _curve(run.tests, "validation_error")
    return {
        "test_error": validated if validated["x"] else _curve(run.tests, "test_error"),
        "on": "validation" if validated["x"] else "test",
        "train_loss": tested if len(tested["x"]) >= 2 else _curve(run.steps, "loss"),
        "epoch_length": _epoch_length(run),
        "rows": len(run.tests) + len(run.steps),
    }


def _curve(rows: list[dict[str, Any]], name: str) -> Curve:
    return curve((integer(row.get("step")), number(row.get(name))) for row in rows)


def _epoch_length(run: Run) -> float | None:
    """Steps per epoch. Tests come at the end of an epoch, so it is step / epoch of a test."""
    if integer(run.config.get("epochs")) is None:
        return None
    for row in run.tests:
        step, epoch = integer(row.get("step")), integer(row.get("epoch"))
        if step and epoch and step > 0 and epoch > 0:
            return number(step / epoch)
    return None


def _learned(run: Path, problems: list[str]) -> list[dict[str, Any]]:
    """A dict for each kind of learned parameter that the snapshots of a run hold.

    Args:
        run: the run folder.
        problems: receives a line for every snapshot that can't be read.

    Returns:
        For each kind: name, label, edges of the bins, epochs, counts per epoch, values (their
        number), and layers: names, in_depth (whether names are in order of depth), and for the
        first and the last epoch the lower quartile, median and upper quartile of each layer.
    """
    epochs: list[tuple[int, Tensors]] = []
    labels: dict[str, str] = {}
    in_depth = True
    paths = list(folder.find_snapshots(run).items())
    last = min(len(paths), MOST_EPOCHS) - 1
    for epoch, path in [paths[round(i * (len(paths) - 1) / max(1, last))] for i in range(last + 1)]:
        try:
            snapshot = checkpoint.read_snapshot(path, framework="np")
        except ValueError as error:
            problems.append(text(str(error)))
            continue
        if snapshot.tensors:
            epochs.append((epoch, _finite(snapshot)))
            labels |= {name: text(label) for name, label in snapshot.labels.items()}
            in_depth = in_depth and snapshot.is_ordered
    kinds = dict.fromkeys((name.rpartition(".")[2], label) for name, label in labels.items())
    found: list[dict[str, Any]] = []
    for index, (attribute, label) in enumerate(list(kinds)[:MOST_KINDS]):
        suffix = f".{attribute}"
        names = {name for name in labels if name.endswith(suffix) and labels[name] == label}
        chosen = [
            (epoch, {name.removesuffix(suffix): v for name, v in tensors.items() if name in names})
            for epoch, tensors in epochs
        ]
        chosen = [(epoch, tensors) for epoch, tensors in chosen if tensors]
        if chosen:
            taken = attribute in {each["name"] for each in found}
            name = f"{attribute}-{index}" if taken else attribute
            found.append({"name": text(name), "label": label, **_histograms(chosen, in_depth)})
    return found


def _finite(snapshot: checkpoint.Snapshot) -> Tensors:
    """Finite values by name in order of depth, or in order of name if it isn't known."""
    tensors = snapshot.tensors
    names = list(tensors) if snapshot.is_ordered else sorted(tensors, key=natural)
    flat = {name: tensors[name].ravel().astype("float64") for name in names}
    finite = {name: values[abs(values) < LARGEST] for name, values in flat.items()}
    return {name: values for name, values in finite.items() if values.size}


def _histograms(epochs: list[tuple[int, Tensors]], in_depth: bool) -> dict[str, Any]:
    import numpy as np

    pooled = [np.concatenate(list(tensors.values())) for _, tensors in epochs]
    low, high = min(values.min() for values in pooled), max(values.max() for values in pooled)
    if high - low < 1e-6 * max(1.0, abs(low)):  # nothing learned yet: all in the middle bin
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    layers = list(epochs[-1][1])

    def quartiles(tensors: Tensors) -> list[list[float | None]]:
        values = [tensors.get(layer, np.array([np.nan])) for layer in layers]
        return [[number(float(q)) for q in np.quantile(v, [0.25, 0.5, 0.75])] for v in values]

    return {
        "edges": [number(float(edge), digits=9) for edge in edges],
        "epochs": [epoch for epoch, _ in epochs],
        "counts": [np.histogram(values, edges)[0].tolist() for values in pooled],
        "values": int(pooled[-1].size),
        "layers": {
            "names": [text(layer) for layer in layers],
            "in_depth": in_depth,
            "first": quartiles(epochs[0][1]),
            "last": quartiles(epochs[-1][1]),
        },
    }
