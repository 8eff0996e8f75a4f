"""Activations by name, each place in a network with an instance of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mpelu.models.checks import one_of
from mpelu.modules import MPELU

Factory = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationSpec:
    """What a network needs to know about the activation it is built with."""

    name: str
    make: Factory
    """From the number of channels to a new module."""
    slope: float
    """The derivative just below zero, which the Taylor initialization takes for alpha beta."""


class SReLU(nn.Module):
    """S-shaped rectified linear unit, four learnable values a channel (Jin et al., 1512.07030).

    f(x) = t_r + a_r (x - t_r) above t_r, t_l + a_l (x - t_l) below t_l, and x between.

    Starts as a leaky ReLU: t_l 0, a_r 1, and a_l the slope. The authors freeze it so for some
    epochs and then fit the thresholds to the layer's inputs; here all four learn from the start,
    and t_r starts at 1, which changes nothing in f until a_r leaves 1.

    Args:
        num_parameters: number of channels (dimension 1).
        slope: initial a_l.

    Shape:
        - Input, output: [batch, channels, ...].

    Example:
        >>> SReLU(1)(torch.tensor([[-1.0], [2.0]])).flatten().tolist()
        [-0.20000000298023224, 2.0]
    """

    def __init__(self, num_parameters: int, slope: float = 0.2) -> None:
        super().__init__()
        self.right_threshold = nn.Parameter(torch.full((num_parameters,), 1.0))
        self.right_slope = nn.Parameter(torch.full((num_parameters,), 1.0))
        self.left_threshold = nn.Parameter(torch.full((num_parameters,), 0.0))
        self.left_slope = nn.Parameter(torch.full((num_parameters,), slope))

    def forward(self, input: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (input.dim() - 2))
        right, left = self.right_threshold.view(shape), self.left_threshold.view(shape)
        above = torch.relu(input - right) * self.right_slope.view(shape)
        below = torch.relu(left - input) * self.left_slope.view(shape)
        return torch.clamp(input, left, right) + above - below

    def extra_repr(self) -> str:
        return f"num_parameters={self.right_threshold.numel()}"


_RRELU = (1 / 8, 1 / 3)

_ALPHA: dict[str, float | None] = {
    "relu": None,
    "leaky_relu": 0.01,
    "prelu": 0.25,
    "rrelu": None,
    "elu": 1.0,
    "srelu": 0.2,
    "mpelu": 1.0,
}
"""The names, and alpha where none is given: the negative slope of leaky_relu, prelu and srelu."""


def resolve(
    activation: str | Factory,
    alpha: float | None = None,
    beta: float | None = None,
) -> ActivationSpec:
    """The activation of a name, or of a callable from the number of channels to a module.

    Args:
        activation: "relu", "leaky_relu", "prelu", "rrelu", "elu", "srelu", "mpelu" or a callable.
        alpha: (initial) alpha of elu and mpelu, negative slope of leaky_relu, prelu and srelu.
        beta: initial beta of mpelu.

    Example:
        >>> resolve("leaky_relu", 0.1).make(64)
        LeakyReLU(negative_slope=0.1)
    """
    if not isinstance(activation, str):
        if not callable(activation):
            raise ValueError(f"activation: expected a name or a callable, got {activation!r}")
        refuse("a callable", alpha=alpha, beta=beta)
        return ActivationSpec(name="callable", make=_checked(activation), slope=0.0)
    one_of("activation", activation, _ALPHA)
    if activation != "mpelu":
        refuse(activation, beta=beta)
    own = _ALPHA[activation]
    if own is None:
        refuse(activation, alpha=alpha)
        if activation == "relu":
            return ActivationSpec(name="relu", make=lambda channels: nn.ReLU(), slope=0.0)
        return ActivationSpec(
            name="rrelu", make=lambda channels: nn.RReLU(*_RRELU), slope=sum(_RRELU) / 2
        )
    value = own if alpha is None else float(alpha)
    rate = 1.0 if beta is None else float(beta)
    makers: dict[str, Factory] = {
        "leaky_relu": lambda channels: nn.LeakyReLU(value),
        "prelu": lambda channels: nn.PReLU(channels, value),
        "elu": lambda channels: nn.ELU(value),
        "srelu": lambda channels: SReLU(channels, value),
        "mpelu": lambda channels: MPELU(channels, value, rate),
    }
    return ActivationSpec(name=activation, make=makers[activation], slope=value * rate)


def refuse(activation: str, **values: float | None) -> None:
    """Raises ValueError if a value was given that the activation has no use for."""
    for name, value in values.items():
        if value is not None:
            raise ValueError(f"{name}: expected None, since {activation} has none; got {value!r}")


def _checked(factory: Factory) -> Factory:
    """The factory, refusing what is no module and a module with parameters handed out twice."""
    made: list[nn.Module] = []

    def make(channels: int) -> nn.Module:
        module = factory(channels)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"activation: expected the callable to return a torch.nn.Module, got {module!r}"
            )
        if any(module is other for other in made):
            raise ValueError(
                "activation: expected a new module each time the callable is called, "
                f"got the same {type(module).__name__} twice"
            )
        if next(module.parameters(), None) is not None:
            made.append(module)
        return module

    return make
