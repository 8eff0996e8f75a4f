"""What the package knows of an activation. Importing it doesn't import torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from mpelu.elementwise import ElementwiseFunction

KINDS = {
    "scale": "a height, such as MPELU's alpha",
    "rate": "a factor of the input, such as MPELU's beta",
    "slope": "the slope of a straight line, such as PReLU's",
    "piece": "a threshold or slope of one of several pieces, such as SReLU's",
    "shape": "any other parameter of the shape",
}
"""Kinds of learnable parameters; `mpelu.param_groups` says how each is trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnableParameter:
    """A learnable parameter of an activation."""

    attribute: str
    """Its name in the module."""
    kind: str = "shape"
    """One of `KINDS`."""
    symbol: str = ""
    """How tables and plots call it (default: the attribute)."""


@dataclass(frozen=True, kw_only=True)
class ActivationRecord:
    """What the package knows of an activation."""

    name: str
    label: str
    """As in tables and legends."""
    build: Callable[..., nn.Module]
    """From the number of channels to a new module. If it has parameters called alpha, beta or dim,
    these are options of the activation."""
    color: str = "#777777"
    """Of its curves, as #rrggbb."""
    parameters: tuple[LearnableParameter, ...] = ()
    slopes: Callable[..., tuple[float, float]] | None = None
    """From the options to the slopes just below and just above zero; None to find them by
    autograd."""
    function: Callable[[Any], ElementwiseFunction] | None = None
    """From a module to the function it computes, which has the moments; None to probe it."""
    module: str = ""
    """Its class as "package.module:Class"; modules of this class are recognized."""

    @cached_property
    def options(self) -> dict[str, Any]:
        """The options alpha, beta and dim as far as it takes them, with their defaults."""
        found = inspect.signature(self.build).parameters
        return {name: found[name].default for name in ("alpha", "beta", "dim") if name in found}

    def label_of(self, parameter: LearnableParameter) -> str:
        """The label of a learnable parameter, such as "α of MPELU"."""
        return f"{parameter.symbol or parameter.attribute} of {self.label}"

    def make(self, channels: int, **options: Any) -> nn.Module:
        """A new module.

        Args:
            channels: number of channels.
            **options: alpha, beta and dim as far as the activation takes them. None counts as not
                given.

        Raises:
            ValueError: for an option that the activation doesn't take, or if `build` doesn't return
                a module.

        Example:
            >>> mpelu.activations.resolve("leaky_relu").make(64, alpha=0.1)
            LeakyReLU(negative_slope=0.1)
        """
        from torch import nn

        module = self.build(channels, **self.check(**options))
        if not isinstance(module, nn.Module):
            raise ValueError(
                f"activation: expected {self.name} to return a torch.nn.Module, got {module!r}"
            )
        return module

    def check(self, **options: Any) -> dict[str, Any]:
        """The options to build with; raises ValueError for one that the activation doesn't take."""
        given = {name: value for name, value in options.items() if value is not None}
        if "dim" in given and "dim" not in self.options:
            # Without parameters per channel, it doesn't matter where the channels are.
            if given["dim"] != 1 and self.parameters:
                raise ValueError(
                    f"dim: expected 1, the dimension of {self.name}'s channels; got {given['dim']}"
                )
            del given["dim"]
        for name, value in given.items():
            if name not in self.options:
                raise ValueError(
                    f"{name}: expected None, since {self.name} has none; got {value!r}"
                )
        return given

    def sample(self, channels: int = 4, **options: Any) -> nn.Module:
        """A module to try out, on the CPU, made without a trace in the random number generators."""
        import torch

        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return self.make(channels, **options)
