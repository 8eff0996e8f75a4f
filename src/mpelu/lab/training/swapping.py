"""Any activation in the place of those that a model has."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

import mpelu
from mpelu import activations
from mpelu.activations import ActivationRecord
from mpelu.converting import Conversion, MPELUByWidth
from mpelu.graph import Inputs
from mpelu.modules import MPELU


def swap_activations(model: nn.Module, inputs: Inputs, activation: str) -> Conversion:
    """Puts an activation wherever `mpelu.convert` would put an MPELU.

    Whatever the activation, it is put in the same places, and no random number is drawn. Calls of
    functions are swapped where torch.fx traces the modules that make them.

    Args:
        model: changed in place; use the `model` of the result.
        inputs: of the model; their shapes count.
        activation: a name of `mpelu.activations.TABLE` or package.module:factory.

    Raises:
        ValueError: in one line, if there is no such activation or nothing to swap.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> swap_activations(model, torch.randn(2, 8), "silu").model[1]
        SiLU()
    """
    record = activations.resolve(activation)
    found = _converted(model, inputs)
    if record.name == "mpelu":
        return found
    for row in found.swapped:
        module = found.model.get_submodule(row.path)
        if isinstance(module, MPELUByWidth):
            for width, each in module.widths.items():
                module.widths[width] = _in_place_of(cast(MPELU, each), record)
        else:
            found.model.set_submodule(row.path, _in_place_of(cast(MPELU, module), record))
    return found


def _converted(model: nn.Module, inputs: Inputs) -> Conversion:
    try:
        return mpelu.convert(model, inputs, rewrite=True)
    except ValueError:  # what torch.fx can't trace may have modules to swap
        return mpelu.convert(model, inputs)


def _in_place_of(old: MPELU, record: ActivationRecord) -> nn.Module:
    channels, dim = old.num_parameters, old.dim
    if not record.parameters or "dim" in record.options or channels == 1:
        module = record.make(channels, dim=dim if "dim" in record.options else None)
    else:
        module = AlongDimension(record.make(channels), dim)
    if old.inplace:
        module = InPlace(module)
    return module.to(old.alpha.device, old.alpha.dtype).train(old.training)


class InPlace(nn.Module):
    """An activation that overwrites its input, for models that read the input afterwards.

    Args:
        activation: the activation.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return input.copy_(self.activation(input.clone()))


class AlongDimension(nn.Module):
    """An activation whose channels are in dimension 1, for tensors with channels elsewhere.

    Args:
        activation: the activation.
        dim: dimension of the channels.
    """

    def __init__(self, activation: nn.Module, dim: int) -> None:
        super().__init__()
        self.activation, self.dim = activation, dim

    def forward(self, input: Tensor) -> Tensor:
        if self.dim % input.dim() == 1:
            output: Tensor = self.activation(input)
            return output
        output = self.activation(input.movedim(self.dim, 1)).movedim(1, self.dim)
        return output
