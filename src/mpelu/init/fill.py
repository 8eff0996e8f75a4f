"""Writes planned weights into a model: random numbers, biases and norms.

A random orthogonal matrix preserves the length of every vector; a Gaussian one preserves it only on
average. Orthogonal weights depend on the layer:

- a linear layer gets a (semi-)orthogonal matrix;
- a convolution of stride one, whose kernel has a center that never lies on padding, gets an
  orthogonal matrix at the center and zeros around it (delta-orthogonal), so that the positions of a
  map aren't mixed;
- in strided, transposed, depthwise and all other convolutions the kernel is flattened to one matrix
  per group, which is made semi-orthogonal.

Every matrix is scaled to the expected norm of a Gaussian one with the layer's standard deviation,
so the variance of the layer's output is the same.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.modules.batchnorm import _NormBase

from mpelu.elementwise import average
from mpelu.graph import NORMS, Layer, Weights, is_frozen, is_zero
from mpelu.init.layers import deviation
from mpelu.init.methods import Method
from mpelu.init.plan import Plan


@torch.no_grad()
def fill_all_(
    plans: Sequence[Plan],
    parameters: Mapping[str, nn.Parameter],
    weights: Weights,
    method: Method,
    generator: torch.Generator | None,
) -> None:
    """Draws every planned weight, and the biases of its layer."""
    for plan in plans:
        if plan.is_trained and not plan.left:
            _fill(plan, parameters, weights, method, generator)
    zero_biases_(plan.bias for plan in plans if not plan.left)
    for plan in plans:
        if plan.bias is not None and plan.bias.requires_grad and plan.bias_std > 0:
            plan.bias.normal_(0, plan.bias_std, generator=generator)


def _fill(
    plan: Plan,
    parameters: Mapping[str, nn.Parameter],
    weights: Weights,
    method: Method,
    generator: torch.Generator | None,
) -> None:
    weight = writable(plan, parameters)
    if plan.is_inverted:
        weight = torch.empty_like(plan.weight, requires_grad=False)
    # What a parametrization makes of random values is known only after writing them.
    is_parametrized = plan.is_computed and weights.parametrized(plan.name) is not None
    scale = 1.0 if is_parametrized else _computed_scale(plan, weight)
    std = plan.std / scale if scale != 1 else plan.std
    if method.distribution == "orthogonal":
        is_whole = weight.shape == plan.weight.shape
        groups = plan.groups if is_whole else 1
        fill_orthogonal_(weight, std, generator, groups, plan.is_delta and is_whole)
    else:
        method.draw_(weight, std, generator)
    if plan.is_inverted:
        weights.write(plan.name, weight)
    elif is_parametrized:
        found = deviation(weights.again(plan.weight))
        weight.mul_(average(plan.std**2) ** 0.5 / found if found > 0 else 1.0)


def _computed_scale(plan: Plan, parameter: Tensor) -> float:
    """Returns how much larger a computed weight is than its parameter; 1 if it isn't a multiple."""
    if not plan.is_computed or plan.is_fixed or isinstance(plan.weight, FakeTensor):
        return 1.0
    before, after = deviation(parameter), deviation(plan.weight)
    return after / before if before > 0 and after > 0 else 1.0


def writable(plan: Plan, parameters: Mapping[str, nn.Parameter]) -> Tensor:
    """Returns the parameter, or the part of it that layers use as this weight."""
    parameter = parameters[plan.name]
    weight = plan.weight if plan.widest is None else plan.widest
    is_part = weight is not parameter and weight.numel() < parameter.numel()
    return weight if is_part and weight._base is parameter else parameter


@torch.no_grad()
def zero_biases_(biases: Iterable[Tensor | None]) -> None:
    """Zeroes the biases that are trained."""
    for bias in biases:
        if bias is not None and (bias.requires_grad or _is_view_of_trained(bias)):
            bias.zero_()


def zero_weights(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> frozenset[str]:
    """Returns paths of weights, and of the scales of norms, that hold only zeros.

    Returns none if all weights do, since the model hasn't been initialized then.
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
    """Resets trained norm layers to weight one, bias zero and fresh running statistics.

    Args:
        model: model with the norm layers.
        kept: paths of weights to leave unchanged.
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


def limits(dtype: torch.dtype) -> tuple[float, float]:
    """Returns the smallest and the largest standard deviation that weights of a type may have.

    Squares of smaller weights vanish, and so do gradients. The limits leave room for the factor of
    ten by which gradients are balanced afterwards.
    """
    info = torch.finfo(dtype)
    return max(1e-28, 16 * info.smallest_normal * info.eps), min(1e28, info.max / 160)


def has_delta(layer: Layer) -> bool:
    """Returns whether the layer's kernel has a center that always lies on the map."""
    if layer.transposed or not layer.is_standard or len(layer.kernel) == 0:
        return False
    is_plain = all(size % 2 == 1 for size in layer.kernel) and all(s == 1 for s in layer.stride)
    if not is_plain or max(layer.kernel) == 1 or layer.channels == layer.groups:
        return False
    return all(
        max(zeros) <= step * (size // 2)
        for zeros, size, step in zip(layer.padding, layer.kernel, layer.dilation, strict=False)
    )


@torch.no_grad()
def fill_orthogonal_(
    weight: Tensor,
    std: float | Tensor,
    generator: torch.Generator | None,
    groups: int = 1,
    is_delta: bool = False,
) -> Tensor:
    """Fills a weight with (semi-)orthogonal matrices that have the norm of N(0, std^2).

    Args:
        weight: weight with outputs first, or inputs first if transposed.
        std: standard deviation, one number or one for each group of the layer.
        generator: random number generator to draw from.
        groups: number of groups of the layer.
        is_delta: whether to put the matrix at the kernel's center, with zeros around it.
    """
    rows = weight.size(0) // groups
    columns = weight.size(1) if is_delta else weight[0].numel()
    matrices = _orthogonal(groups, rows, columns, weight, generator)
    scale = (weight.numel() / groups / min(rows, columns)) ** 0.5
    factors = (
        std if isinstance(std, Tensor) else torch.tensor([std], dtype=torch.float64, device="cpu")
    )
    matrices = matrices * (scale * factors).to(matrices).reshape(-1, 1, 1)
    if is_delta:
        size = math.prod(weight.shape[2:])
        taps = matrices.new_zeros(groups, rows, columns, size)
        taps[..., size // 2] = matrices
        weight.copy_(taps.reshape(weight.shape))
    else:
        weight.copy_(matrices.reshape(weight.shape))
    return weight


def _orthogonal(
    count: int, rows: int, columns: int, like: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Draws uniform random matrices [count, rows, columns] with orthonormal rows or columns."""
    # There is no QR decomposition in half precision.
    dtype = torch.promote_types(like.dtype, torch.float32)
    shape = (count, max(rows, columns), min(rows, columns))
    drawn = torch.empty(shape, dtype=dtype, device=like.device).normal_(generator=generator)
    q, r = torch.linalg.qr(drawn)
    q = q * r.diagonal(dim1=1, dim2=2).sgn().unsqueeze(1)
    matrices: Tensor = q if rows >= columns else q.mT
    return matrices
