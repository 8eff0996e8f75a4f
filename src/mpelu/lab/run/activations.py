"""The learnable parameters of activations, kept as they change over a run."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save
from torch import Tensor, nn

from mpelu.lab.run import files
from mpelu.modules import MPELU

FOLDER = "activations"


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """NAME.alpha and NAME.beta of every MPELU, NAME.weight of every PReLU; float32, on the CPU."""
    return {
        f"{name}.{key}": value.detach().float().cpu()
        for name, module in model.named_modules()
        if isinstance(module, (MPELU, nn.PReLU))
        for key, value in module.named_parameters(recurse=False)
    }


def write(run: Path, epoch: int, model: nn.Module) -> None:
    """Writes them, if there are any, as those of the end of the epoch.

    The file's metadata holds their names in the order of depth: safetensors sorts its tensors.
    """
    values = parameters_of(model)
    if values:
        data = save(values, metadata={"order": "\n".join(values)})
        files.write(run / FOLDER / f"epoch-{epoch:04d}.safetensors", data)
