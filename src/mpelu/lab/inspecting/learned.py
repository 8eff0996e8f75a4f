"""alpha and beta of every MPELU, and the slopes of every PReLU, now and over training."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mpelu.init.graph import unwrap
from mpelu.lab.errors import UserError
from mpelu.modules import MPELU


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """Values by name: "NAME.alpha" and "NAME.beta" of an MPELU, "NAME.weight" of a PReLU."""

    epochs: tuple[int, ...]
    """Those at which the run kept values, rising; 0 is the start. () for a module."""
    history: dict[str, Tensor]
    """[epochs, channels], float64."""
    final: dict[str, Tensor]
    """[channels], float64: of the module, or the run's final weights, or else its last epoch."""


def learned_parameters(source: nn.Module | Path) -> Learned:
    """Reads what activations have learned.

    Args:
        source: a module, or a run folder, also one whose training goes on.

    Raises:
        UserError: if the folder isn't one of a run, or what it keeps is damaged.

    Example:
        >>> found = learned_parameters(nn.Sequential(nn.Linear(8, 2), mpelu.MPELU(2)))
        >>> {name: values.tolist() for name, values in found.final.items()}
        {'1.alpha': [1.0, 1.0], '1.beta': [1.0, 1.0]}
    """
    if isinstance(source, nn.Module):
        return Learned(epochs=(), history={}, final=_of_module(unwrap(source)))
    if not (source / "config.json").is_file():
        raise UserError(f"{source}: expected a run folder with config.json, got none")
    files = _by_epoch(source / "activations")
    weights = source / "model.safetensors"
    snapshots = [_read(path) for path in files.values()]
    names = snapshots[0].keys() if snapshots else ()
    for path, snapshot in zip(files.values(), snapshots, strict=True):
        if {name: value.shape for name, value in snapshot.items()} != {
            name: value.shape for name, value in snapshots[0].items()
        }:
            raise UserError(
                f"{path}: expected the activations of {next(iter(files.values())).name}, got others"
            )
    history = {name: torch.stack([each[name] for each in snapshots]) for name in names}
    if weights.is_file():
        is_learned = set(names).__contains__ if names else re.compile(r".*(alpha|beta)").fullmatch
        final = _read(weights, is_learned)
    else:
        final = {name: values[-1] for name, values in history.items()}
    return Learned(epochs=tuple(files), history=history, final=final)


def _of_module(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{name}.{parameter}".lstrip("."): values.detach().to("cpu", torch.float64).reshape(-1)
        for name, module in model.named_modules()
        if isinstance(module, (MPELU, nn.PReLU))
        for parameter, values in module.named_parameters(recurse=False)
    }


def _by_epoch(folder: Path) -> dict[int, Path]:
    found = {
        int(match[1]): path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (match := re.fullmatch(r"epoch-(\d+)\.safetensors", path.name))
    }
    return dict(sorted(found.items()))


def _read(path: Path, is_wanted: Callable[[str], object] = lambda name: True) -> dict[str, Tensor]:
    """Tensors of a file as float64 rows, by name."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {
                name: file.get_tensor(name).to(torch.float64).reshape(-1)
                for name in file.keys()  # noqa: SIM118 (not a dict)
                if is_wanted(name)
            }
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: expected readable safetensors, got {error}") from None
