"""The activation of a network, with an instance of its own for each place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from mpelu import activations
from mpelu.activations import ActivationRecord
from mpelu.elementwise import average

Factory = Callable[[int], nn.Module]


@dataclass(frozen=True, kw_only=True, slots=True)
class ActivationSpec:
    """What a network needs to know about the activation it is built with."""

    name: str
    make: Factory
    """From the number of channels to a new module."""
    slope: float | None
    """The derivative just below zero, which the Taylor initialization uses for alpha beta. None if
    f(0) isn't 0 or the derivative above zero isn't 1, so that the Taylor initialization doesn't
    apply."""
    second_moment: float = 0.5
    """E[f^2] under a standard normal variable, if slope is None."""


def resolve(
    activation: str | Factory,
    alpha: float | None = None,
    beta: float | None = None,
) -> ActivationSpec:
    """The activation of a name, or of a callable from the number of channels to a module.

    Args:
        activation: a name of `mpelu.activations.TABLE`, "package.module:factory" or a callable.
        alpha: (initial) alpha of elu, celu and mpelu, negative slope of leaky_relu, prelu and
            srelu.
        beta: initial beta of mpelu.

    Example:
        >>> resolve("leaky_relu", 0.1).make(64)
        LeakyReLU(negative_slope=0.1)
        >>> resolve("gelu").slope is None, round(resolve("gelu").second_moment, 4)
        (True, 0.4252)
    """
    record = activations.resolve(activation)
    options = record.check(
        alpha=None if alpha is None else float(alpha), beta=None if beta is None else float(beta)
    )
    with torch.device("cpu"):  # the network may be built on the meta device
        initialization = _initialization(record, options)
    return ActivationSpec(
        name=record.name,
        make=_checked(partial(record.make, **options)),
        **initialization,
    )


def _initialization(record: ActivationRecord, options: dict[str, Any]) -> dict[str, Any]:
    """slope and second_moment. What isn't elementwise is initialized as ReLU is."""
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
    # A function that is almost 0 would need weights that are almost infinite.
    return {"slope": None, "second_moment": second} if second > 1e-6 else {"slope": 0.0}


def _checked(make: Factory) -> Factory:
    """The factory, refusing a module with parameters that is handed out twice."""
    made: dict[int, nn.Module] = {}

    def checked(channels: int) -> nn.Module:
        module = make(channels)
        if id(module) in made:
            raise ValueError(
                "activation: expected a new module each time the callable is called, "
                f"got the same {type(module).__name__} twice"
            )
        if next(module.parameters(), None) is not None:
            made[id(module)] = module  # kept alive, so that no other has its id
        return module

    return checked
