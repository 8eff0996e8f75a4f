"""Writing planned weights into a model: weights, biases and norms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _NormBase

from mpelu.elementwise import average
from mpelu.graph import NORMS, Weights, is_frozen, is_zero
from mpelu.init.depth import Choice
from mpelu.init.orthogonal import fill_orthogonal_
from mpelu.init.outputs import deviation
from mpelu.init.plan import Plan
from mpelu.init.rules import GAUSSIAN_STD, fill_


def fill_all_(
    plans: Sequence[Plan],
    parameters: Mapping[str, nn.Parameter],
    weights: Weights,
    choice: Choice,
    std: float,
    generator: torch.Generator | None,
) -> None:
    for plan in plans:
        if not plan.is_trained or plan.left:
            continue
        weight = writable(plan, parameters)
        if plan.is_inverted:
            weight = torch.empty_like(plan.weight, requires_grad=False)
        # What a parametrization makes of random values shows once they are there.
        is_parametrized = plan.is_computed and weights.parametrized(plan.name) is not None
        scale = 1.0 if is_parametrized else _computed_scale(plan, weight)
        if choice.distribution == "orthogonal":
            is_whole = weight.shape == plan.weight.shape
            fill_orthogonal_(
                weight,
                plan.std / scale,
                generator,
                plan.groups if is_whole else 1,
                plan.is_delta and is_whole,
            )
        elif choice.method == "gaussian":
            # Drawn with the paper's deviation and then scaled, so that weights of any other are
            # multiples of the same numbers.
            fill_(weight, GAUSSIAN_STD, generator)
            if std != GAUSSIAN_STD:
                with torch.no_grad():
                    weight.mul_(std / GAUSSIAN_STD)
        else:
            fill_(weight, plan.std / scale if scale != 1 else plan.std, generator)
        if plan.is_inverted:
            weights.write(plan.name, weight)
        elif is_parametrized:
            with torch.no_grad():
                found = deviation(weights.again(plan.weight))
                weight.mul_(average(plan.std**2) ** 0.5 / found if found > 0 else 1.0)


def _computed_scale(plan: Plan, parameter: Tensor) -> float:
    """How much larger a computed weight is than the parameter it is a multiple of; 1 for others."""
    if not plan.is_computed or plan.is_fixed or isinstance(plan.weight, FakeTensor):
        return 1.0
    before, after = deviation(parameter), deviation(plan.weight)
    return after / before if before > 0 and after > 0 else 1.0


def writable(plan: Plan, parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """The parameter, or the part of it that layers use as this weight."""
    parameter = parameters[plan.name]
    weight = plan.weight if plan.written is None else plan.written
    is_part = weight is not parameter and weight.numel() < parameter.numel()
    return weight if is_part and weight._base is parameter else parameter


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


def _is_view_of_trained(tensor: Tensor) -> bool:
    return tensor._base is not None and tensor._base.requires_grad
