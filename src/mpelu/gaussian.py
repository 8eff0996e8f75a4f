"""Moments of activations and of their slopes for a Gaussian input, in float64.

MPELU and leaky ReLU have closed forms; any other function is integrated by quadrature.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

_SERIES_BELOW = 0.25
_SERIES_TERMS = 24
_TAIL = 13.0
"""Range of the quadrature in standard deviations; the Gaussian weight beyond it is 1e-37."""
_MAX_LOST = 1e-3
"""Largest probability of inputs for which a function may be undefined."""
HALVINGS = 18
"""How often panels halve towards a kink: down to 26 / 2^18 = 1e-4 standard deviations."""


@contextlib.contextmanager
def plain_tensors() -> Iterator[None]:
    """Creates tensors on the CPU that have values and can be differentiated, whatever mode the
    caller is in: a default device, inference mode, fake tensors.

    Cached results are calculated in this context, so that they don't depend on the first caller.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(False):
        yield


def to_float64(value: float | Tensor) -> Tensor:
    """Converts a value to float64: tensors stay attached to their graph, numbers are on the CPU."""
    if isinstance(value, Tensor):
        return value.to(torch.float64)
    return torch.tensor(value, dtype=torch.float64, device="cpu")


def check_parameters(caller: str, alpha: Tensor, beta: Tensor, variance: Tensor) -> None:
    """Raises ValueError unless alpha is finite, beta positive and variance not negative."""
    if not alpha.isfinite().all():
        raise ValueError(f"{caller}: expected finite alpha, got {alpha.tolist()}")
    if not (beta.isfinite() & (beta > 0)).all():
        raise ValueError(f"{caller}: expected beta > 0, got {beta.min().item():g}")
    if not (variance.isfinite() & (variance >= 0)).all():
        raise ValueError(f"{caller}: expected variance >= 0, got {variance.min().item():g}")


def _scaled_tail(t: Tensor) -> Tensor:
    """Returns E(t) = e^(t^2/2) P(z < -t) for a standard normal z."""
    tail: Tensor = torch.special.erfcx(t / math.sqrt(2)) / 2
    return tail


Numbers = tuple[float, ...]


# Numbers, because cached tensors would belong to the mode in which they were created.
@lru_cache(maxsize=1)
@plain_tensors()
def _series() -> tuple[Numbers, Numbers, Numbers]:
    """Returns exponents k >= 2, and the coefficients of t^k in E(t) and in E(2t) - 2 E(t)."""
    powers = torch.arange(2, _SERIES_TERMS, dtype=torch.float64)
    tail = 0.5 * (-math.sqrt(0.5)) ** powers / torch.lgamma(powers / 2 + 1).exp()
    second = tail * (2**powers - 2)
    return tuple(powers.tolist()), tuple(tail.tolist()), tuple(second.tolist())


def moments(
    alpha: float | Tensor, beta: float | Tensor, variance: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns the exact mean and second moment of MPELU under N(0, variance).

    With variance = sigma^2, t = beta sigma and E(t) = erfcx(t / sqrt 2) / 2,

        E[f]   = sigma / sqrt(2 pi) + alpha (E(t) - 1/2)
        E[f^2] = sigma^2 / 2 + alpha^2 (E(2t) - 2 E(t) + 1/2).

    Below t = 0.25, where their terms cancel, a power series replaces them. For t from 1e-8 to 1e4
    the second moment has a relative error within 1e-12; so has the mean, relative to the larger of
    its two terms (the mean itself passes through zero where they cancel).

    Args:
        alpha: number or tensor; shapes broadcast.
        beta: like alpha, positive.
        variance: like alpha, non-negative.

    Returns:
        E[f] and E[f^2], float64 tensors of the broadcast shape, differentiable in every argument.

    Example:
        >>> mean, second = moments(alpha=1.0, beta=1.0)
        >>> round(mean.item(), 4), round(second.item(), 4)
        (0.1605, 0.6449)
    """
    alpha, beta, variance = to_float64(alpha), to_float64(beta), to_float64(variance)
    check_parameters("moments", alpha, beta, variance)
    sigma = variance.sqrt()
    t = beta * sigma

    # Each branch sees only arguments in its own range, so the one not taken has finite gradients.
    large = t.clamp(min=_SERIES_BELOW)
    tail = _scaled_tail(large)
    mean = sigma / math.sqrt(2 * math.pi) + alpha * (tail - 0.5)
    negative_second = _scaled_tail(2 * large) - 2 * tail + 0.5
    if (t < _SERIES_BELOW).any():
        exponents, tail_terms, second_terms = (
            torch.tensor(terms, dtype=torch.float64, device=t.device) for terms in _series()
        )
        powers = t.clamp(max=_SERIES_BELOW).unsqueeze(-1) ** exponents
        is_small = t < _SERIES_BELOW
        # The first-order term is added to sigma / sqrt(2 pi) before the others: the two cancel
        # near alpha beta = 1.
        small_mean = sigma * (1 - alpha * beta) / math.sqrt(2 * math.pi) + alpha * (
            powers @ tail_terms
        )
        mean = torch.where(is_small, small_mean, mean)
        negative_second = torch.where(is_small, powers @ second_terms, negative_second)
    return mean, variance / 2 + alpha**2 * negative_second


def leaky_moments(
    slope: float | Tensor, mean: float | Tensor = 0.0, variance: float | Tensor = 1.0
) -> tuple[Tensor, Tensor]:
    """Returns exact moments of y for y > 0, slope y otherwise, under N(mean, variance).

    Example:
        >>> [round(moment.item(), 4) for moment in leaky_moments(slope=0.0)]
        [0.3989, 0.5]
    """
    slope, mean, variance = to_float64(slope), to_float64(mean), to_float64(variance)
    sigma = variance.sqrt()
    ratio = mean / sigma.clamp(min=torch.finfo(torch.float64).tiny)
    above = torch.special.ndtr(ratio)
    density = torch.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    positive = mean * above + sigma * density
    positive_second = (mean**2 + variance) * above + mean * sigma * density
    second = mean**2 + variance
    return (
        positive + slope * (mean - positive),
        positive_second + slope**2 * (second - positive_second),
    )


def _sigma(variance: Tensor) -> Tensor:
    """Returns the standard deviation, kept above zero."""
    return variance.sqrt().clamp(min=torch.finfo(torch.float64).tiny)


def normal_cdf(x: Tensor) -> Tensor:
    """Returns P(z < x), with full relative precision even where torch.special.ndtr returns 0."""
    found: Tensor = torch.special.erfc(-x / math.sqrt(2)) / 2
    return found


def truncated_exponential(rate: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns E[e^(rate y); y < 0] for y ~ N(mean, variance) and rate >= 0.

    This is e^(rate m + rate^2 v / 2) P(z < -x) with x = m / sigma + rate sigma. For positive x both
    factors are out of range long before their product is, so the scaled tail is used instead.
    """
    sigma = _sigma(variance)
    x = mean / sigma + rate * sigma
    scaled = torch.exp(-((mean / sigma) ** 2) / 2) * torch.special.erfcx(
        x.clamp(min=0) / math.sqrt(2)
    )
    # Where x is negative the exponent is below -rate^2 v / 2.
    exponent = torch.where(x < 0, rate * mean + rate**2 * variance / 2, 0.0)
    plain: Tensor = torch.exp(exponent) * normal_cdf(-x)
    return torch.where(x < 0, plain, scaled / 2)


def exponential_mean(alpha: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns E[f] of MPELU under N(mean, variance)."""
    sigma = _sigma(variance)
    ratio = mean / sigma
    above = normal_cdf(ratio)
    density = torch.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    below = truncated_exponential(beta, mean, variance) - normal_cdf(-ratio)
    found: Tensor = mean * above + sigma * density + alpha * below
    return found


def exponential_slope(alpha: Tensor, beta: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns E[f'] of MPELU under N(mean, variance)."""
    above = normal_cdf(mean / _sigma(variance))
    found: Tensor = above + alpha * beta * truncated_exponential(beta, mean, variance)
    return found


def squared_slope(
    alpha: float | Tensor,
    beta: float | Tensor,
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
) -> Tensor:
    """Returns E[f'^2] of MPELU under N(mean, variance), the factor by which it scales gradients.

    It equals P(y > 0) + (alpha beta)^2 E[e^(2 beta y); y < 0]; at mean 0 and variance 1 this is
    1/2 + (alpha beta)^2 E(2 beta) with E(t) = erfcx(t / sqrt 2) / 2.

    Args:
        alpha: number or tensor; shapes broadcast.
        beta: like alpha, positive.
        mean: mean of the input, like alpha.
        variance: variance of the input, like alpha, positive.

    Returns:
        A float64 tensor of the broadcast shape.

    Example:
        >>> round(squared_slope(1.0, 1.0).item(), 4)
        0.6681
    """
    alpha, beta, mean, variance = map(to_float64, (alpha, beta, mean, variance))
    check_parameters("squared_slope", alpha, beta, variance)
    if not (variance > 0).all():
        raise ValueError(f"squared_slope: expected variance > 0, got {variance.min().item():g}")
    above = normal_cdf(mean / _sigma(variance))
    found: Tensor = above + (alpha * beta) ** 2 * truncated_exponential(2 * beta, mean, variance)
    return found


@lru_cache(maxsize=1)
@plain_tensors()
def _legendre(count: int = 12) -> tuple[Numbers, Numbers]:
    """Returns nodes and weights of Gauss-Legendre quadrature on [-1, 1] (Golub and Welsch)."""
    index = torch.arange(1, count, dtype=torch.float64)
    off_diagonal = index / (4 * index**2 - 1).sqrt()
    nodes, vectors = torch.linalg.eigh(off_diagonal.diag(1) + off_diagonal.diag(-1))
    return tuple(nodes.tolist()), tuple((2 * vectors[0] ** 2).tolist())


def panel_mean(function: Callable[[Tensor], Tensor], low: Tensor, high: Tensor) -> Tensor:
    """Returns the mean of an elementwise function between two points, using one quadrature panel.

    Args:
        function: maps a float64 tensor of shape [points, channels] to one of the same shape.
        low: lower point, shape [channels].
        high: upper point, shape [channels].
    """
    nodes, weights = (
        torch.tensor(values, dtype=torch.float64, device=low.device).unsqueeze(1)
        for values in _legendre()
    )
    found: Tensor = (weights / 2 * function((low + high) / 2 + (high - low) / 2 * nodes)).sum(0)
    return found


def gaussian_nodes(
    center: Tensor, sigma: Tensor, kinks: Sequence[float | Tensor], halvings: int = HALVINGS
) -> tuple[Tensor, Tensor]:
    """Returns nodes z and weights of a standard normal z for functions of center + sigma z.

    Uses Gauss-Legendre quadrature on panels that end at every kink and halve towards it.

    Args:
        center: mean of the function's argument, shape [channels].
        sigma: standard deviation of the argument, shape [channels].
        kinks: where the function is not smooth: numbers, or tensors of shape [channels].
        halvings: number of times panels halve towards a kink.

    Returns:
        Two float64 tensors of shape [points, channels].
    """
    tiny = torch.finfo(torch.float64).tiny
    device = center.device
    uniform = torch.arange(-_TAIL, _TAIL + 1, dtype=torch.float64, device=device)
    edges = [uniform.unsqueeze(1).expand(-1, center.numel())]
    exponents = torch.arange(halvings + 1, dtype=torch.float64, device=device)
    steps = 2 * _TAIL * 0.5 ** exponents.unsqueeze(1)
    for kink in kinks:
        place = ((kink - center) / sigma.clamp(min=tiny)).clamp(-2 * _TAIL, 2 * _TAIL)
        edges += [place - steps, place.unsqueeze(0), place + steps]
    bounds = torch.cat(edges).clamp(-_TAIL, _TAIL).sort(0).values

    nodes, weights = (
        torch.tensor(values, dtype=torch.float64, device=device) for values in _legendre()
    )
    half = (bounds[1:] - bounds[:-1]) / 2
    z = (bounds[:-1] + half).unsqueeze(1) + half.unsqueeze(1) * nodes.view(1, -1, 1)
    weight = half.unsqueeze(1) * weights.view(1, -1, 1) * torch.exp(-(z**2) / 2)
    weight = weight / math.sqrt(2 * math.pi)
    return z.flatten(0, 1), weight.flatten(0, 1)


def quadrature_moments(
    function: Callable[[Tensor], Tensor],
    mean: float | Tensor = 0.0,
    variance: float | Tensor = 1.0,
    kinks: Sequence[float | Tensor] = (0.0,),
    maximum_of: int = 1,
) -> tuple[Tensor, Tensor]:
    """Returns the mean and second moment of an elementwise function of a Gaussian variable.

    Uses Gauss-Legendre quadrature on panels that end at every kink and shrink towards it.

    Args:
        function: maps a float64 tensor of shape [points, channels] to one of the same shape.
        mean: mean of the variable, shape [] or [channels].
        variance: variance of the variable, like mean.
        kinks: where the function is not smooth: numbers, or tensors of shape [channels].
        maximum_of: number of independent variables, the largest of which is the argument.

    Returns:
        Two float64 tensors of shape [channels].

    Example:
        >>> mean, second = quadrature_moments(torch.tanh)
        >>> round(second.item(), 4)
        0.3943
    """
    weight, values = _at_nodes(function, mean, variance, kinks, maximum_of)
    return (weight * values).sum(0), (weight * values**2).sum(0)


def quadrature_mean(
    function: Callable[[Tensor], Tensor],
    mean: float | Tensor,
    variance: float | Tensor,
    kinks: Sequence[float | Tensor],
) -> Tensor:
    """Returns only the mean, as `quadrature_moments` does."""
    weight, values = _at_nodes(function, mean, variance, kinks)
    return (weight * values).sum(0)


def _at_nodes(
    function: Callable[[Tensor], Tensor],
    mean: float | Tensor,
    variance: float | Tensor,
    kinks: Sequence[float | Tensor],
    maximum_of: int = 1,
) -> tuple[Tensor, Tensor]:
    """Returns the weights and the function's values at the nodes of the quadrature."""
    center, spread = torch.broadcast_tensors(
        to_float64(mean).reshape(-1), to_float64(variance).reshape(-1)
    )
    sigma = spread.sqrt()
    z, weight = gaussian_nodes(center, sigma, kinks)
    if maximum_of > 1:
        weight = weight * maximum_of * torch.special.ndtr(z) ** (maximum_of - 1)
    values = function(center + sigma * z)
    # A function such as a square root is NaN outside its domain. A small probability there is
    # ignored; a function that is undefined with a larger probability has no moments.
    if not values.sum().isfinite():
        is_number = values.isfinite()
        lost = (weight * ~is_number).sum(0)
        values = torch.where(is_number | (lost > _MAX_LOST), values, 0.0)
    return weight, values


def residual_bound(
    alpha: float, beta: float, variance: float = 1.0, deviations: float = 1.0
) -> float:
    """Returns a bound of |f(y) - tangent(y)| for every y above -deviations standard deviations.

    It is deviations^2 / 2 |alpha| beta^2 variance, the remainder of the Taylor expansion.

    Example:
        >>> [residual_bound(1.0, 1.0, 1.0, deviations) for deviations in (1, 2, 3)]
        [0.5, 2.0, 4.5]
    """
    _check_residual("residual_bound", alpha, beta, variance)
    return deviations**2 / 2 * abs(alpha) * beta**2 * variance


def residual_share(residual: float, alpha: float, beta: float, variance: float = 1.0) -> float:
    """Returns the share of inputs from N(0, variance) whose residual is bounded by `residual`.

    The paper's 84.135 %, 97.725 % and 99.865 % correspond to the bounds at one, two and three
    standard deviations. Its 55.57 % for a residual of 0.01 is the share above -0.14; the
    unrounded threshold -0.1414 gives 55.62 %.

    Example:
        >>> [round(100 * residual_share(bound, 1.0, 1.0), 3) for bound in (0.5, 2.0, 4.5)]
        [84.134, 97.725, 99.865]
        >>> round(100 * residual_share(0.01, 1.0, 1.0), 2)
        55.62
        >>> round(100 * residual_share(0.14**2 / 2, 1.0, 1.0), 2)
        55.57
    """
    _check_residual("residual_share", alpha, beta, variance)
    if not residual >= 0:
        raise ValueError(f"residual_share: expected residual >= 0, got {residual}")
    if alpha == 0:
        return 1.0
    threshold = math.sqrt(2 * residual / abs(alpha)) / beta
    return (1 + math.erf(threshold / math.sqrt(2 * variance))) / 2


def _check_residual(caller: str, alpha: float, beta: float, variance: float) -> None:
    check_parameters(caller, to_float64(alpha), to_float64(beta), to_float64(variance))
    if not variance > 0:
        raise ValueError(f"{caller}: expected variance > 0, got {variance}")
