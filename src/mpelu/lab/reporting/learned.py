"""What alpha and beta became: histograms over epochs and quartiles by layer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.reporting.values import LARGEST, natural, number, text

if TYPE_CHECKING:
    import numpy as np

BINS = 40
MOST_EPOCHS = 10
"""Epochs shown of those recorded: the first, the last and others evenly between."""
PARAMETERS = {"alpha": "α of MPELU", "beta": "β of MPELU", "weight": "slope of PReLU"}


def recorded(run: Path) -> list[tuple[int, Path]]:
    """The epochs whose parameters the run folder holds, in order."""
    found = []
    for path in (run / "activations").glob("epoch-*.safetensors"):
        if name := re.fullmatch(r"epoch-(\d{1,12})", path.stem):
            found.append((int(name[1]), path))
    return sorted(found)


def learned(run: Path, problems: list[str]) -> list[dict[str, Any]]:
    """A dict for each kind of parameter in activations/.

    Args:
        run: the run folder.
        problems: gets a line for every file that can't be read.

    Returns:
        name, label, edges of the bins, epochs, a list of counts an epoch, the number of values, and
        layers: their names, whether these are in the order of depth, and at the first and the last
        epoch the lower quartile, median and upper quartile of each.
    """
    files = [(epoch, *_read(path, problems)) for epoch, path in spread(recorded(run))]
    epochs = [(epoch, tensors) for epoch, tensors, _ in files if tensors]
    in_depth = bool(epochs) and all(told for _, tensors, told in files if tensors)
    return [
        _kind(kind, label, chosen, in_depth)
        for kind, label in PARAMETERS.items()
        if (chosen := _of_kind(epochs, kind))
    ]


def spread(items: list[Any], most: int = MOST_EPOCHS) -> list[Any]:
    """At most so many of the items, the first and the last among them.

    Example:
        >>> spread(list(range(9)), 3)
        [0, 4, 8]
    """
    if len(items) <= most:
        return items
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


Tensors = dict[str, "np.ndarray"]


def _read(path: Path, problems: list[str]) -> tuple[Tensors, bool]:
    """The finite values of every tensor in the order of depth, or of name and False if untold."""
    import numpy as np
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "np") as file:
            order = (file.metadata() or {}).get("order", "").split("\n")
            names = sorted(file.keys(), key=natural)
            told = sorted(order) == sorted(names)
            tensors = {name: file.get_tensor(name) for name in (order if told else names)}
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        problems.append(f"activations/{path.name} can't be read: {error}")
        return {}, False
    flat = {name: values.ravel().astype(np.float64) for name, values in tensors.items()}
    return {name: values[np.abs(values) < LARGEST] for name, values in flat.items()}, told


def _of_kind(epochs: list[tuple[int, Tensors]], kind: str) -> list[tuple[int, Tensors]]:
    chosen = [
        (
            epoch,
            {
                name.removesuffix(f".{kind}"): values
                for name, values in tensors.items()
                if name.endswith(f".{kind}") and values.size
            },
        )
        for epoch, tensors in epochs
    ]
    return [(epoch, tensors) for epoch, tensors in chosen if tensors]


def _kind(
    kind: str, label: str, epochs: list[tuple[int, Tensors]], in_depth: bool
) -> dict[str, Any]:
    import numpy as np

    pooled = [np.concatenate(list(tensors.values())) for _, tensors in epochs]
    low, high = min(values.min() for values in pooled), max(values.max() for values in pooled)
    if high - low < 1e-6 * max(1.0, abs(low)):  # nothing learned yet: all in the middle bin
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    names = list(epochs[-1][1])
    return {
        "name": kind,
        "label": label,
        "edges": [number(float(edge), digits=9) for edge in edges],
        "epochs": [epoch for epoch, _ in epochs],
        "counts": [np.histogram(values, edges)[0].tolist() for values in pooled],
        "values": int(pooled[-1].size),
        "layers": {
            "names": [text(name) for name in names],
            "in_depth": in_depth,
            "first": _quartiles(epochs[0][1], names),
            "last": _quartiles(epochs[-1][1], names),
        },
    }


def _quartiles(tensors: Tensors, names: list[str]) -> list[list[float | None]]:
    import numpy as np

    empty = np.array([np.nan])
    return [
        [number(float(q)) for q in np.quantile(tensors.get(name, empty), [0.25, 0.5, 0.75])]
        for name in names
    ]
