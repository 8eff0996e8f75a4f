"""Parts that all networks share: the activation, initial weights that fit it, and checks.

The initial weights follow one rule for all convolutions, as in the papers. The network's attribute
`own_initialization` describes the rule in words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpelu import activations
from mpelu.activations import ActivationRecord
from mpelu.elementwise import average
from mpelu.init import rules

Factory = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationSpec:
    """What a network needs to know about its activation."""

    name: str
    make: Factory
    """Function from the number of channels to a new module."""
    slope: float | None
    """Derivative just below zero, which the Taylor initialization uses for alpha beta. None if
    f(0) isn't 0 or the derivative above zero isn't 1, so that the Taylor initialization doesn't
    apply."""
    second_moment: float = 0.5
    """E[f^2] for a standard normal variable, if slope is None."""
    coordinates: str | None = None
    """Those of MPELU, if they were given."""


def activation_spec(
    activation: str | Factory,
    alpha: float | None = None,
    beta: float | None = None,
    coordinates: str | None = None,
) -> ActivationSpec:
    """Returns what a network needs to know about an activation.

    Args:
        activation: name in `mpelu.activations.TABLE`, "package.module:factory", or a callable
            from the number of channels to a module.
        alpha: alpha of elu and celu, initial alpha of mpelu, (initial) negative slope of
            leaky_relu, prelu and srelu.
        beta: initial beta of mpelu.
        coordinates: "paper" or "slope", the coordinates of mpelu.

    Example:
        >>> activation_spec("leaky_relu", 0.1).make(64)
        LeakyReLU(negative_slope=0.1)
        >>> activation_spec("gelu").slope is None, round(activation_spec("gelu").second_moment, 4)
        (True, 0.4252)
    """
    record = activations.resolve(activation)
    options = record.check(
        alpha=None if alpha is None else float(alpha),
        beta=None if beta is None else float(beta),
        coordinates=coordinates,
    )
    with torch.device("cpu"):  # the network may be built on the meta device
        initialization = _initialization(record, options)
    return ActivationSpec(
        name=record.name,
        make=_checked(partial(record.make, **options)),
        coordinates=coordinates,
        **initialization,
    )


def _initialization(record: ActivationRecord, options: dict[str, Any]) -> dict[str, Any]:
    """Returns slope and second_moment; ReLU's if the activation isn't elementwise."""
    if record.slope is not None:
        chosen = {**record.options, **options}
        chosen.pop("dim", None)
        return {"slope": record.slope(**chosen)}
    function = activations.describe(record.sample(**options))
    if function is None:
        return {"slope": 0.0}
    value, left, right = (average(each) for each in function.at_zero())
    if abs(value) < 1e-9 and abs(right - 1) < 1e-9:
        return {"slope": left}
    second = average(function.moments()[1])
    # A function close to 0 would need nearly infinite weights.
    return {"slope": None, "second_moment": second} if second > 1e-6 else {"slope": 0.0}


def _checked(make: Factory) -> Factory:
    """Makes a factory raise ValueError if it returns the same module with parameters twice."""
    made: dict[int, nn.Module] = {}

    def checked(channels: int) -> nn.Module:
        module = make(channels)
        if id(module) in made:
            raise ValueError(
                "activation: expected a new module each time the callable is called, "
                f"got the same {type(module).__name__} twice"
            )
        if next(module.parameters(), None) is not None:
            made[id(module)] = module  # kept alive, so that no other gets its id
        return module

    return checked


def keep_variance_(network: nn.Module, activation: ActivationSpec, mode: str) -> None:
    """Draws convolutions such that the signal's variance is preserved; zeros all biases.

    Uses the paper's rule, `taylor_`, if the activation has slope 1 above zero, and otherwise its
    second moment: std = sqrt(1 / (n E[f^2])).

    Args:
        network: network to change in place.
        activation: activation of the network.
        mode: whether n counts the inputs or the outputs of a convolution.
    """
    if activation.slope is not None:
        taylor_(network, activation.slope, mode)
        return
    second = activation.second_moment
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            rules.taylor_normal_(module.weight, 0.0, mode=mode)  # std = sqrt(2 / n)
            with torch.no_grad():
                module.weight.mul_((2 * second) ** -0.5)
    network.own_initialization = f"exact {mode}, second moment {second:g}"  # type: ignore[assignment]


def taylor_(network: nn.Module, slope: float, mode: str) -> None:
    """Draws convolutions with the paper's std = sqrt(2 / (n (1 + slope^2))); zeros all biases.

    Args:
        network: network to change in place.
        slope: alpha beta of the activation.
        mode: whether n counts the inputs or the outputs of a convolution.
    """
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            rules.taylor_normal_(module.weight, slope, mode=mode)
    network.own_initialization = f"taylor {mode}, slope {slope:g}"  # type: ignore[assignment]


def gaussian_(network: nn.Module, std: float) -> None:
    """Draws convolutions from a Gaussian; zeros all biases."""
    for module in _weighted(network):
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, std=std)
    network.own_initialization = f"gaussian std {std:g}"  # type: ignore[assignment]


def _weighted(network: nn.Module) -> Iterator[nn.Conv2d | nn.Linear]:
    """Yields convolutions and linear layers that have values, after zeroing their biases."""
    for module in network.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)) and not module.weight.is_meta:
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            yield module


def one_of(noun: str, value: object, allowed: Iterable[str], *, network: str = "") -> None:
    """Raises ValueError unless the value is one of the allowed names.

    Args:
        noun: word for what the names are, such as "option".
        value: name that was given.
        allowed: all valid names.
        network: name of the network, for the error.

    Example:
        >>> one_of("shortcut", "D", ("A", "B"), network="resnet-20")
        Traceback (most recent call last):
        ValueError: resnet-20: unknown shortcut 'D'; choose A or B
    """
    names = list(allowed)
    if value in names:
        return
    message = f"{network}: " if network else ""
    message += f"unknown {noun} {value!r}; "
    if not names:
        raise ValueError(f"{message}there are none")
    close = get_close_matches(str(value), names, n=1)
    message += f"did you mean {close[0]!r}? Choose " if close else "choose "
    raise ValueError(message + listed(names))


def listed(names: Sequence[str]) -> str:
    """Returns names as they are listed in a sentence.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b or c'
    """
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def one_of_depths(network: str, depth: int, allowed: Sequence[int]) -> None:
    """Raises ValueError unless the depth is one of those allowed."""
    if depth not in allowed:
        closest = min(allowed, key=lambda other: abs(other - depth))
        expected = listed([str(other) for other in allowed])
        raise ValueError(
            f"{network}: expected a depth of {expected}, got {depth} (closest: {closest})"
        )


def at_least(what: str, value: object, minimum: int) -> None:
    """Raises ValueError unless value is a whole number of at least the minimum."""
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{what}: expected a whole number >= {minimum}, got {value!r}")


class Images(nn.Module):
    """Passes images on; raises ValueError for images that the network can't take.

    Args:
        network: name of the network, for the error.
        channels: expected number of channels.
        smallest: smallest height and width.
        exact: whether `smallest` is the only height and width.

    Shape:
        - Input, output: [batch, channels, height, width].
    """

    def __init__(self, network: str, channels: int, smallest: int, *, exact: bool = False) -> None:
        super().__init__()
        self.network = network
        self.channels = channels
        self.smallest = smallest
        self.exact = exact

    def forward(self, images: Tensor) -> Tensor:
        fits = images.dim() == 4 and images.size(1) == self.channels
        if fits:
            sides = (images.size(2), images.size(3))
            fits = min(sides) >= self.smallest and (not self.exact or max(sides) == self.smallest)
        if not fits:
            size = f"{self.smallest}x{self.smallest}" + ("" if self.exact else " or larger")
            raise ValueError(
                f"{self.network}: expected images [batch, {self.channels}, height, width] of "
                f"{size}, got {list(images.shape)}"
            )
        return images

    def extra_repr(self) -> str:
        relation = "==" if self.exact else ">="
        return f"channels={self.channels}, size{relation}{self.smallest}"
