"""Activations as functions of one number: slopes at zero, and moments under a Gaussian."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from mpelu.gaussian import (
    leaky_moments,
    moments,
    plain_tensors,
    quadrature_moments,
    to_float64,
)
from mpelu.slopes import squared_slope

_AT_ZERO = 1e-12
"""Where the slopes beside zero are taken, in float64."""
_LIKELY_KINKS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0)
"""Where the activations of torch.nn have theirs; for functions that are only known by probing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ElementwiseFunction:
    """A function that is applied to each number, with parameters per channel or for all channels.

    Two families have closed forms. In the exponential family `alpha`, `beta` and `scale` are set:
    scale y for y > 0, and scale alpha (e^(beta y) - 1) otherwise. In the leaky family `slope` is
    set: y for y > 0, and slope y otherwise. Any other function is integrated numerically.
    """

    apply: Callable[[Tensor], Tensor]
    """From float64 [points, channels] to the same shape, differentiable."""
    channels: int = 1
    """How many channels its parameters are for; 1 if it treats all alike."""
    alpha: float | Tensor | None = None
    beta: float | Tensor | None = None
    scale: float | Tensor = 1.0
    slope: float | Tensor | None = None
    kinks: tuple[float | Tensor, ...] = (0.0,)
    """Where it isn't smooth, or bends sharply: numbers, or tensors [channels]."""

    @property
    def has_closed_form(self) -> bool:
        return self.slope is not None or self.alpha is not None

    def at_zero(self) -> tuple[Tensor, Tensor, Tensor]:
        """f(0), and the slopes just below and just above zero, each float64 [channels]."""
        zero, one = self._for_channels(0.0), self._for_channels(1.0)
        if self.slope is not None:
            return zero, self.slope * one, one
        if self.alpha is not None and self.beta is not None:
            return zero, self.scale * self.alpha * self.beta * one, self.scale * one
        points = torch.tensor([[0.0], [-_AT_ZERO], [_AT_ZERO]], dtype=torch.float64, device="cpu")
        points = points.repeat(1, self.channels)
        with torch.no_grad():
            value = self.apply(points)[0]
        below, above = self.derivative(points)[1:]
        return value, below, above

    def moments(
        self, mean: float | Tensor = 0.0, variance: float | Tensor = 1.0
    ) -> tuple[Tensor, Tensor]:
        """E[f] and E[f^2] under N(mean, variance), each float64 [channels].

        In closed form for the leaky family, and for the exponential family if the mean is the
        number 0; by quadrature otherwise.
        """
        if self.slope is not None:
            first, second = leaky_moments(self.slope, mean, variance)
        elif self.alpha is not None and self.beta is not None and _is_zero(mean):
            first, second = moments(self.alpha, self.beta, variance)
            scale = to_float64(self.scale)
            first, second = scale * first, scale**2 * second
        else:
            mean, variance = self._for_channels(mean), self._for_channels(variance)
            with torch.no_grad():
                first, second = quadrature_moments(self.apply, mean, variance, self.kinks)
        return first.reshape(-1), second.reshape(-1)

    def squared_slope(self, mean: float | Tensor = 0.0, variance: float | Tensor = 1.0) -> Tensor:
        """E[f'^2] under N(mean, variance), float64 [channels].

        The factor by which a layer of weights with variance 1/n scales the gradient. In closed
        form for both families.
        """
        center, spread = to_float64(mean), to_float64(variance)
        sigma = spread.sqrt().clamp(min=torch.finfo(torch.float64).tiny)
        if self.slope is not None:
            above = torch.special.ndtr(center / sigma)
            found: Tensor = above + to_float64(self.slope) ** 2 * (1 - above)
            return found.reshape(-1)
        if self.alpha is not None and self.beta is not None:
            found = squared_slope(self.alpha, self.beta, center, spread)
            return (to_float64(self.scale) ** 2 * found).reshape(-1)
        mean, variance = self._for_channels(mean), self._for_channels(variance)
        return quadrature_moments(self.derivative, mean, variance, self.kinks)[1]

    def derivative(self, points: Tensor) -> Tensor:
        """f' at float64 [points, channels]; at a kink, one of the slopes beside it."""
        # Tensors made in inference mode take no gradient.
        with torch.inference_mode(False), torch.enable_grad():
            points = points.detach().clone().requires_grad_()
            (found,) = torch.autograd.grad(self.apply(points).sum(), points)
        return found

    def _for_channels(self, value: float | Tensor) -> Tensor:
        number = to_float64(value).reshape(-1)
        return number.expand(self.channels) if number.numel() == 1 else number


LINEAR = ElementwiseFunction(apply=lambda y: y, slope=1.0)


def exponential(
    alpha: float | Tensor, beta: float | Tensor, scale: float | Tensor = 1.0
) -> ElementwiseFunction:
    """scale times y for y > 0, alpha (e^(beta y) - 1) otherwise.

    Example:
        >>> mean, second = exponential(1.0, 1.0).moments()
        >>> round(mean.item(), 4), round(second.item(), 4)
        (0.1605, 0.6449)
    """
    alpha, beta, scale = _detached(alpha), _detached(beta), _detached(scale)

    def apply(y: Tensor) -> Tensor:
        return scale * torch.where(y > 0, y, alpha * torch.expm1(beta * y.clamp(max=0)))

    sizes = [each.numel() for each in (alpha, beta, scale) if isinstance(each, Tensor)]
    return ElementwiseFunction(
        apply=apply, channels=max(sizes, default=1), alpha=alpha, beta=beta, scale=scale
    )


def leaky(slope: float | Tensor) -> ElementwiseFunction:
    """y for y > 0, slope y otherwise.

    Example:
        >>> [round(moment.item(), 4) for moment in leaky(0.0).moments()]
        [0.3989, 0.5]
    """
    slope = _detached(slope)
    return ElementwiseFunction(
        apply=lambda y: torch.where(y > 0, y, slope * y),
        channels=slope.numel() if isinstance(slope, Tensor) else 1,
        slope=slope,
    )


def probe(
    module: nn.Module, kinks: tuple[float | Tensor, ...] = _LIKELY_KINKS
) -> ElementwiseFunction | None:
    """A module as a function, found by running a copy of it in float64 and evaluation mode.

    The module and the state of random number generators are left as they are.

    Args:
        module: takes and returns one tensor, with channels in dimension 1.
        kinks: where it may not be smooth.

    Returns:
        None if it isn't elementwise, has no values (meta), or can't be run or copied; `LINEAR` if
        it returns its input.
    """
    tensors = [*module.parameters(), *module.buffers()]
    # A weight matrix mixes numbers. A norm layer looks elementwise in evaluation mode, but isn't.
    if any(each.is_meta or sum(size > 1 for size in each.shape) > 1 for each in tensors):
        return None
    if any(isinstance(each, _NormBase) for each in module.modules()):
        return None
    channels = max((parameter.numel() for parameter in module.parameters()), default=1)
    with plain_tensors(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            own = copy.deepcopy(module).to("cpu", torch.float64).eval().requires_grad_(False)
        except Exception:  # modules that can't be copied raise anything
            return None
        for each in own.modules():
            each._forward_hooks.clear()
            each._forward_pre_hooks.clear()
        # Its parameters may be shaped for images or for features alone.
        for dims in (4, 2):
            found = _elementwise(own, channels, dims, kinks)
            if found is not None:
                return found
    return None


@torch.no_grad()
def _elementwise(
    module: nn.Module, channels: int, dims: int, kinks: tuple[float | Tensor, ...]
) -> ElementwiseFunction | None:
    """The module as a function, unless an output depends on more than its own input."""
    generator = torch.Generator().manual_seed(0)
    shape = (8, channels if channels > 1 else 3, *[3] * (dims - 2))
    one, other = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    kept = torch.rand(shape, generator=generator, dtype=torch.float32) < 0.5
    try:
        outputs = module(one.clone()), module(torch.where(kept, one, other))
    except Exception:  # whatever a module that isn't made for such a tensor raises
        return None
    if any(not isinstance(out, Tensor) or out.shape != shape for out in outputs):
        return None
    if torch.equal(outputs[0], one):
        return LINEAR
    if not torch.equal(outputs[0][kept], outputs[1][kept]):
        return None

    def apply(y: Tensor) -> Tensor:
        spread = y.reshape(*y.shape, *[1] * (dims - 2))
        with plain_tensors():
            # A copy: the module may work in place.
            output: Tensor = module(spread.clone())
        return output.reshape(y.shape).to(torch.float64)

    return ElementwiseFunction(apply=apply, channels=channels, kinks=kinks)


def _detached(value: float | Tensor) -> float | Tensor:
    if not isinstance(value, Tensor):
        return value
    return value.detach().to("cpu", torch.float64).reshape(-1)


def _is_zero(mean: float | Tensor) -> bool:
    return not isinstance(mean, Tensor) and mean == 0
