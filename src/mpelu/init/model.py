"""Checks of a model and its inputs, and what is reset around its weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parameter import is_lazy

from mpelu.graph import Inputs, arguments, is_frozen, substitute
from mpelu.init.operations import NORMS


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
    if not any(tensor.numel() for tensor in tensors):
        raise ValueError(
            f"{caller}: expected inputs with values, got an empty one of shape "
            f"{list(tensors[0].shape)}"
        )
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
    return ValueError(
        f"{caller}: expected inputs the model can run on, got shapes {shapes}: {reason(error)}"
    )


def reason(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@torch.no_grad()
def zero_biases_(biases: Iterable[Tensor | None]) -> None:
    """Zeroes the biases that are trained."""
    for bias in biases:
        if bias is not None and (bias.requires_grad or _is_view_of_trained(bias)):
            bias.zero_()


@torch.no_grad()
def fill_bias_(bias: Tensor | None, std: float, generator: torch.Generator | None) -> None:
    """N(0, std^2) if the bias is trained and std positive."""
    if bias is not None and bias.requires_grad and std > 0:
        bias.normal_(0, std, generator=generator)


def zero_weights(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> frozenset[str]:
    """Paths of weights, and of the scales of norms, that hold nothing but zeros.

    None if all weights do: then nobody has set the model yet.
    """
    scales = {
        f"{path}.weight" for path, module in model.named_modules() if isinstance(module, NORMS)
    }
    weights = {
        name: is_zero(parameter)
        for name, parameter in parameters.items()
        if parameter.dim() > 1 or name in scales
    }
    is_empty = all(zero for name, zero in weights.items() if name not in scales)
    return frozenset() if is_empty else frozenset(filter(weights.get, weights))


@torch.no_grad()
def is_zero(weight: Tensor) -> bool:
    """Whether a tensor has elements, and all of them are zero."""
    if isinstance(weight, FakeTensor):
        return False
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # sharded
    # Most differ from zero at the first place, and need not be read any further.
    return whole.numel() > 0 and not whole[(0,) * whole.dim()].item() and not whole.any().item()


@torch.no_grad()
def reset_norms_(model: nn.Module, kept: Collection[str] = ()) -> None:
    """Weight one, bias zero and fresh running statistics for every norm layer that is trained.

    Args:
        model: whose norms they are.
        kept: paths of weights that stay.
    """
    for path, module in model.named_modules():
        if not isinstance(module, NORMS) or is_frozen(module):
            continue
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{path}.{name}" not in kept:
                parameter.fill_(1.0 if name == "weight" else 0.0)
        if isinstance(module, _NormBase):
            module.reset_running_stats()


def variance_of(output: Tensor) -> float:
    """Over all elements."""
    return _observed(output, lambda values: values.var(correction=0))


def mean_square_of(output: Tensor) -> float:
    """Over all elements."""
    return _observed(output, lambda values: values.square().mean())


def _observed(output: Tensor, moment: Callable[[Tensor], Tensor]) -> float:
    found = moment(output.to(torch.promote_types(output.dtype, torch.float32))).item()
    if _SMALLEST < found < _LARGEST:
        return found
    return moment(output.to("cpu", torch.float64)).item()  # squares out of the range of float32


_SMALLEST, _LARGEST = 1e-30, 1e37


def _is_view_of_trained(tensor: Tensor) -> bool:
    return tensor._base is not None and tensor._base.requires_grad
