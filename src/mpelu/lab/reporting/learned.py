"""Histograms of the learned parameters of activations, and their quartiles by layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mpelu.lab.reporting.values import LARGEST, natural, number, text
from mpelu.lab.run import checkpoint, folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[np.float64]]
    """Finite values by name."""

BINS = 40
MOST_EPOCHS = 10
"""At most this many snapshots are shown: the first, the last, and others evenly between."""
MOST_KINDS = 12
"""At most this many kinds of parameters are shown."""

Item = TypeVar("Item")


def learned_histograms(run: Path, problems: list[str]) -> list[dict[str, Any]]:
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
    for epoch, path in spread(list(folder.find_snapshots(run).items())):
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
        names = {name for name, its in labels.items() if its == label}
        chosen = _of_parameter(epochs, attribute, names)
        if chosen:
            taken = attribute in {each["name"] for each in found}
            name = f"{attribute}-{index}" if taken else attribute
            found.append(_histograms(text(name), label, chosen, in_depth))
    return found


def spread(items: list[Item], most: int = MOST_EPOCHS) -> list[Item]:
    """At most `most` of the items, evenly spread, with the first and the last.

    Example:
        >>> spread(list(range(9)), 3)
        [0, 4, 8]
    """
    if len(items) <= most:
        return items
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]


def _finite(snapshot: checkpoint.Snapshot) -> Tensors:
    """Finite values by name in order of depth, or in order of name if it isn't known."""
    import numpy as np

    tensors = snapshot.tensors
    names = list(tensors) if snapshot.is_ordered else sorted(tensors, key=natural)
    flat = {name: tensors[name].ravel().astype(np.float64) for name in names}
    return {name: values[np.abs(values) < LARGEST] for name, values in flat.items()}


def _of_parameter(
    epochs: list[tuple[int, Tensors]], attribute: str, names: set[str]
) -> list[tuple[int, Tensors]]:
    """The values of one parameter by layer, for epochs that have any."""
    suffix = f".{attribute}"
    chosen = [
        (
            epoch,
            {
                key.removesuffix(suffix): values
                for key, values in tensors.items()
                if key in names and key.endswith(suffix) and values.size
            },
        )
        for epoch, tensors in epochs
    ]
    return [(epoch, tensors) for epoch, tensors in chosen if tensors]


def _histograms(
    name: str, label: str, epochs: list[tuple[int, Tensors]], in_depth: bool
) -> dict[str, Any]:
    import numpy as np

    pooled = [np.concatenate(list(tensors.values())) for _, tensors in epochs]
    low, high = min(values.min() for values in pooled), max(values.max() for values in pooled)
    if high - low < 1e-6 * max(1.0, abs(low)):  # nothing learned yet: all in the middle bin
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    layers = list(epochs[-1][1])
    return {
        "name": name,
        "label": label,
        "edges": [number(float(edge), digits=9) for edge in edges],
        "epochs": [epoch for epoch, _ in epochs],
        "counts": [np.histogram(values, edges)[0].tolist() for values in pooled],
        "values": int(pooled[-1].size),
        "layers": {
            "names": [text(layer) for layer in layers],
            "in_depth": in_depth,
            "first": _quartiles(epochs[0][1], layers),
            "last": _quartiles(epochs[-1][1], layers),
        },
    }


def _quartiles(tensors: Tensors, layers: list[str]) -> list[list[float | None]]:
    import numpy as np

    empty = np.array([np.nan])
    return [
        [number(float(q)) for q in np.quantile(tensors.get(layer, empty), [0.25, 0.5, 0.75])]
        for layer in layers
    ]
