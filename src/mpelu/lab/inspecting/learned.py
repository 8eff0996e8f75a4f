"""Reads the learned parameters of activations, of a module or over training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mpelu.activations import learnable_parameters
from mpelu.graph import unwrap
from mpelu.lab.errors import UserError
from mpelu.lab.run import checkpoint, folder


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedParameters:
    """Values of learned parameters by name, such as "NAME.alpha" and "NAME.beta" of an MPELU."""

    epochs: tuple[int, ...]
    """Epochs of the run's snapshots, in increasing order; 0 is before training. Empty for a
    module."""
    history: dict[str, Tensor]
    """Tensors [epochs, channels] in float64."""
    final: dict[str, Tensor]
    """Tensors [channels] in float64, from the module or from the run's last snapshot."""
    labels: dict[str, str]
    """Labels by name, such as "α of MPELU"."""


def learned_parameters(source: nn.Module | Path) -> LearnedParameters:
    """Returns the learned parameters of activations.

    Args:
        source: module or run folder. The run may be in progress.

    Raises:
        UserError: if the path isn't a run folder, or a snapshot is damaged.

    Example:
        >>> found = learned_parameters(nn.Sequential(nn.Linear(8, 2), nn.PReLU(2)))
        >>> {name: values.tolist() for name, values in found.final.items()}
        {'1.weight': [0.25, 0.25]}
    """
    if isinstance(source, nn.Module):
        learned = list(learnable_parameters(unwrap(source)))
        return LearnedParameters(
            epochs=(),
            history={},
            final=_flat({each.name: each.parameter for each in learned}),
            labels={each.name: each.label for each in learned},
        )
    folder.read_config_values(source)
    paths = folder.find_snapshots(source)
    read = [_read(source, path) for path in paths.values()]
    found = [_flat(each.tensors) for each in read]
    names = found[0].keys() if found else ()
    for path, values in zip(paths.values(), found, strict=True):
        if _shapes(values) != _shapes(found[0]):
            first = next(iter(paths.values()))
            raise UserError(f"{path}: expected the same activations as in {first.name}, got others")
    history = {name: torch.stack([each[name] for each in found]) for name in names}
    final = {name: values[-1] for name, values in history.items()}
    labels = read[-1].labels if read else {}
    return LearnedParameters(epochs=tuple(paths), history=history, final=final, labels=labels)


def _read(run: Path, path: Path) -> checkpoint.Snapshot:
    try:
        return checkpoint.read_snapshot(path)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from None


def _flat(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.detach().to("cpu", torch.float64).reshape(-1) for name, value in values.items()
    }


def _shapes(values: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in values.items()}
