"""Snapshots of the learnable parameters of activations, taken at up to 50 epochs of a run.

A snapshot is activations/epoch-NNNN.safetensors. Its tensors are named MODULE.PARAMETER, for
example ``layer1.0.act.alpha``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mpelu.activations import TABLE, learnable_parameters
from mpelu.lab.checksums import read_tensors, seal_tensors
from mpelu.lab.run import files

if TYPE_CHECKING:
    from torch import nn

FOLDER = "activations"
_NAME = re.compile(r"epoch-(\d{1,12})\.safetensors")
_LABELS = {
    parameter.attribute: record.label_of(parameter)
    for record in TABLE.values()
    for parameter in record.parameters
}
"""By attribute, for snapshots of versions that didn't write labels."""


class Snapshot(NamedTuple):
    """The parameters of activations after an epoch."""

    tensors: dict[str, Any]
    """By name."""
    is_ordered: bool
    """Whether they are in order of depth (otherwise of name)."""
    labels: dict[str, str]
    """Labels by name, such as "α of MPELU"; none for what isn't an activation's parameter."""


def write(run: Path, epoch: int, model: nn.Module) -> None:
    """Writes the snapshot of an epoch, in float32; none if nothing is learnable.

    safetensors sorts its tensors by name, so the metadata holds the names in order of depth, each
    with a tab and its label, such as "α of MPELU".
    """
    found = list(learnable_parameters(model))
    if found:
        order = "\n".join(f"{each.name}\t{' '.join(each.label.split())}" for each in found)
        values = {each.name: each.parameter.detach().float().cpu() for each in found}
        data = seal_tensors(values, order=order)
        files.write(run / FOLDER / f"epoch-{epoch:04d}.safetensors", data)


def find(run: Path) -> dict[int, Path]:
    """The snapshots of a run folder by epoch, in order."""
    folder = run / FOLDER
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := _NAME.fullmatch(path.name))
    }
    return dict(sorted(found.items()))


def read(path: Path, framework: str = "pt") -> Snapshot:
    """Reads a snapshot.

    Args:
        path: the file.
        framework: "pt" for torch tensors, "np" for numpy arrays without importing torch.

    Raises:
        ValueError: in one line, if the file is damaged.
    """
    try:
        found, about = read_tensors(path, framework=framework)
    except ValueError as error:
        raise ValueError(f"{FOLDER}/{error}") from None
    names = sorted(found)
    lines = str(about.get("order", "")).split("\n")
    labels = {name: label for name, _, label in (line.partition("\t") for line in lines)}
    is_ordered = sorted(labels) == names
    tensors = {name: found[name] for name in (labels if is_ordered else names)}
    known = {name: labels.get(name) or _LABELS.get(name.rpartition(".")[2]) for name in tensors}
    return Snapshot(tensors, is_ordered, {name: label for name, label in known.items() if label})
