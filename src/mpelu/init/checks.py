"""What a model and its inputs have to be, found out before anything is changed."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.init.graph import Inputs, arguments, substitute


def check_model(
    caller: str, model: nn.Module, generator: torch.Generator | None
) -> dict[str, nn.Parameter]:
    """The model's parameters; raises unless weights are among them, in memory and where the
    generator is.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    parameters = dict(model.named_parameters())
    for name, parameter in parameters.items():
        if is_lazy(parameter):
            raise ValueError(f"{caller}: expected weights with a shape, got a lazy {name}")
        if parameter.is_meta:
            raise ValueError(f"{caller}: expected weights with memory, got {name} on meta")
        if generator is not None and generator.device.type != parameter.device.type:
            raise ValueError(
                f"{caller}: expected a generator on {parameter.device.type} as {name}, "
                f"got one on {generator.device.type}"
            )
    if not any(parameter.dim() > 1 for parameter in parameters.values()):
        raise ValueError(
            f"{caller}: expected a model with weights, got none of two or more dimensions in "
            f"{type(model).__name__}"
        )
    return parameters


def check_inputs(caller: str, inputs: Inputs) -> None:
    """Raises if there is no tensor among the inputs or one isn't finite."""
    tensors: list[Tensor] = []
    substitute(arguments(inputs), Tensor, tensors.append)
    if not tensors:
        raise ValueError(f"{caller}: expected tensors as inputs, got {type(inputs).__name__}")
    for tensor in tensors:
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ValueError(
                f"{caller}: expected finite inputs, got NaN or infinity in one of shape "
                f"{list(tensor.shape)}"
            )


def input_error(caller: str, inputs: Inputs, error: Exception) -> ValueError:
    """What a forward pass raised, in one line with the shapes it was given."""
    shapes: list[list[int]] = []
    substitute(arguments(inputs), Tensor, lambda tensor: shapes.append(list(tensor.shape)))
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ValueError(
        f"{caller}: expected inputs the model can run on, got shapes {shapes}: {reason}"
    )
