"""Snapshots of the learnable parameters of activations, taken at up to 50 epochs of a run.

A snapshot is activations/epoch-NNNN.safetensors. Its tensors are named MODULE.PARAMETER, for
example ``layer1.0.act.alpha``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.run import files

if TYPE_CHECKING:
    from torch import Tensor, nn

FOLDER = "activations"
_NAME = re.compile(r"epoch-(\d{1,12})\.safetensors")


def learnable(model: nn.Module) -> dict[str, Tensor]:
    """alpha and beta of every MPELU and the slopes of every PReLU, by name, in order of depth."""
    from torch import nn

    from mpelu.modules import MPELU

    return {
        f"{name}.{key}".lstrip("."): value
        for name, module in model.named_modules()
        if isinstance(module, (MPELU, nn.PReLU))
        for key, value in module.named_parameters(recurse=False)
    }


def write(run: Path, epoch: int, model: nn.Module) -> None:
    """Writes the snapshot of an epoch, in float32; none if nothing is learnable.

    safetensors sorts its tensors by name, so the metadata holds the names in order of depth.
    """
    from safetensors.torch import save

    values = {name: value.detach().float().cpu() for name, value in learnable(model).items()}
    if values:
        data = save(values, metadata={"order": "\n".join(values)})
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


def read(path: Path, framework: str = "pt") -> tuple[dict[str, Any], bool]:
    """The tensors of a snapshot, and whether they are in order of depth (otherwise of name).

    Args:
        path: the file.
        framework: "pt" for torch tensors, "np" for numpy arrays without importing torch.

    Raises:
        ValueError: in one line, if the file is damaged.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as file:
            names = sorted(file.keys())
            order = (file.metadata() or {}).get("order", "").split("\n")
            is_ordered = sorted(order) == names
            return {name: file.get_tensor(name) for name in (order if is_ordered else names)}, (
                is_ordered
            )
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ValueError(f"{FOLDER}/{path.name} can't be read: {error}") from None
