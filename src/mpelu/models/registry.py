"""Builds networks by name."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any

from torch import nn

from mpelu.models import cifar, plain, residual
from mpelu.models.parts import Factory, activation_spec, at_least, listed, one_of


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """Networks that differ in the numbers at the end of their name."""

    build: Callable[..., nn.Module]
    """Takes the name and its numbers, then keywords."""
    sizes: tuple[str, ...] = ("",)
    """Endings, after the family's name, of the names of the paper's networks."""
    activation: str | None = "mpelu"
    """Activation by default; None for maxout, which isn't a function of one value."""
    alpha: float = 1.0
    """Initial alpha of an MPELU."""
    num_classes: int = 10
    input_size: int = 32
    layers: int = 0
    """Number of weight layers, if it isn't the first number in the name."""
    design: residual.ResidualDesign | None = None
    """Design of its networks, if they are residual networks."""

    def numbers(self) -> int:
        """Returns how many numbers the name ends in."""
        return len(self.sizes[0].split("-")) if self.sizes[0] else 0


def _residual(design: residual.ResidualDesign, *sizes: str, **values: Any) -> Family:
    return Family(build=partial(residual.build, design), sizes=sizes, design=design, **values)


_BASIC_DEPTHS = ("20", "32", "44", "56", "110")
_IMAGENET_DEPTHS = (18, 34, 50, 101, 152)
"""Depths of torchvision's residual networks; `create` warns that ours differ."""

FAMILIES: dict[str, Family] = {
    "nin": Family(build=cifar.nin, input_size=28, layers=9),
    "plain": Family(build=plain.build, sizes=("15", "30", "52"), num_classes=1000, input_size=224),
    "resnet": _residual(residual.RESNET, *_BASIC_DEPTHS, "1202", activation="relu"),
    "elu-resnet": _residual(residual.RESNET, *_BASIC_DEPTHS, activation="elu"),
    "mpelu-resnet-a": _residual(residual.RESNET, *_BASIC_DEPTHS),
    "mpelu-resnet-b": _residual(residual.RESNET_B, *_BASIC_DEPTHS),
    "mpelu-resnet": _residual(residual.NON_BOTTLENECK, *_BASIC_DEPTHS),
    "preresnet": _residual(residual.PRE, "164", "1001", activation="relu", alpha=0.25),
    "mpelu-preresnet": _residual(residual.MPELU_PRE, "164", alpha=0.25),
    "mpelu-only-preresnet-bn": _residual(residual.MPELU_ONLY_PRE_BN, "164", alpha=0.25),
    "mpelu-only-preresnet": _residual(residual.MPELU_ONLY_PRE, "164", alpha=0.25),
    "nopre-bn-resnet": _residual(residual.NOPRE_BN, "164", alpha=0.25),
    "nopre-resnet": _residual(residual.NOPRE, "164", "1001", alpha=0.25),
    "nopre-nobn-resnet": _residual(residual.NOPRE_NO_BN, "164", alpha=0.25),
    "nopre-nobn1-resnet": _residual(residual.NOPRE_NO_BN_1, "164", alpha=0.25),
    "nopre-nobn1-nobnend-resnet": _residual(residual.NOPRE_NO_BN_1_END, "164", alpha=0.25),
    "all-cnn-c": Family(build=cifar.all_cnn_c, activation="relu", layers=9),
    "highway": Family(build=cifar.highway, sizes=("19", "32"), activation="relu"),
    "dsn": Family(build=cifar.dsn, activation="relu", layers=9),
    "fitnet": Family(build=cifar.fitnet, sizes=("19",), activation=None),
    "elu": Family(build=cifar.elu, sizes=("18",), activation="elu", num_classes=100),
    "stochastic-resnet": _residual(residual.STOCHASTIC, "110", "1202", activation="relu"),
    "wide-resnet": _residual(residual.WIDE, "16-8", "28-10", activation="relu"),
}


def names() -> list[str]:
    """Returns the names of the paper's networks. `create` also takes other depths of each family.

    Example:
        >>> names()[:3]
        ['nin', 'plain-15', 'plain-30']
    """
    return [
        f"{family}-{size}" if size else family
        for family, value in FAMILIES.items()
        for size in value.sizes
    ]


def find(name: str) -> tuple[Family, tuple[int, ...]]:
    """Returns the family of a network and the numbers its name ends in.

    Raises:
        ValueError: if there is no such family, or its names have more or fewer numbers.

    Example:
        >>> find("vgg-16")
        Traceback (most recent call last):
        ValueError: unknown network 'vgg-16'; `mpelu models` lists all
    """
    stem = re.sub(r"(-\d+)*$", "", name)
    numbers = tuple(int(number) for number in name[len(stem) :].split("-")[1:])
    family = FAMILIES.get(stem)
    if family is None:
        close = [_example(each, FAMILIES[each]) for each in get_close_matches(stem, FAMILIES)]
        meant = f"did you mean a name like {listed(close)}? " if close else ""
        raise ValueError(f"unknown network {name!r}; {meant}`mpelu models` lists all")
    if len(numbers) != family.numbers():
        raise ValueError(f"unknown network {name!r}; expected a name like {_example(stem, family)}")
    return family, numbers


def _example(name: str, family: Family) -> str:
    return repr(f"{name}-{family.sizes[0]}".removesuffix("-"))


def create(
    name: str,
    *,
    num_classes: int | None = None,
    activation: str | Factory | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    coordinates: str | None = None,
    in_channels: int = 3,
    **options: Any,
) -> nn.Module:
    """Builds a network by name, with initial weights.

    Under `torch.device("meta")` it has shapes but no values, which is fast.

    Args:
        name: one of `names()`, or a name of the same form with another valid depth.
        num_classes: number of outputs; None for the paper's: 1000 for plain, 100 for elu-18, 10 for
            all others.
        activation: name in `mpelu.activations.TABLE`, such as "gelu", "package.module:factory", or
            a callable from a number of channels to a new module; replaces the network's own.
            Learnable activations have separate parameters for each channel, at each place.
        alpha: alpha of ELU and CELU, initial alpha of MPELU, (initial) negative slope of leaky
            ReLU, PReLU and SReLU. None for the activation's default; for MPELU, the paper's choice.
        beta: initial beta of MPELU; None for 1.
        coordinates: "slope" for MPELU with slope and rate, which start at the function that alpha
            and beta give; None for "paper", alpha and beta.
        in_channels: number of channels of the images.
        **options: options of the network (see the builders): `width`, `shortcut` and
            `gradient_checkpointing` of residual networks, `batch_norm`, `dropout`, `width`,
            `fc_width`, `input_size`, `norm_momentum` and `small_maps` of plain ones, `input_size`
            of dsn.

    Returns:
        A module from [batch, in_channels, height, width] to [batch, num_classes].

    Raises:
        ValueError: for an unknown name or option, or one that doesn't fit.

    Warns:
        UserWarning: for a residual network with the depth of one of torchvision's, such as
            "resnet-50". The residual networks here are those for CIFAR, with a quarter of the
            channels and no pooling after the first convolution.

    Example:
        >>> network = create("nopre-resnet-164", num_classes=100)
        >>> sum(parameter.numel() for parameter in network.parameters())
        1719380
    """
    family, numbers = find(name)
    if num_classes is None:
        num_classes = family.num_classes
    at_least(f"{name}: num_classes", num_classes, 1)
    at_least(f"{name}: in_channels", in_channels, 1)
    allowed = _options(family)
    for option in options:
        one_of("option", option, allowed, network=name)
    chosen = family.activation if activation is None else activation
    if chosen == "mpelu" and alpha is None:
        alpha = family.alpha
    if chosen is None:
        given = {"alpha": alpha, "beta": beta, "coordinates": coordinates}
        for option, value in given.items():
            if value is not None:
                raise ValueError(f"{option}: maxout takes no {option}, got {value!r}")
    network = family.build(
        name,
        *numbers,
        activation=None if chosen is None else activation_spec(chosen, alpha, beta, coordinates),
        num_classes=num_classes,
        in_channels=in_channels,
        **options,
    )
    if family.design is not None and numbers[0] in _IMAGENET_DEPTHS:
        width = options.get("width", 16) * family.design.expansion
        warnings.warn(
            f"{name} is the CIFAR residual network of {numbers[0]} layers ({width}, {2 * width}, "
            f"{4 * width} channels), not torchvision's ImageNet ResNet-{numbers[0]}",
            stacklevel=2,
        )
    return network


def _options(family: Family) -> list[str]:
    return [
        parameter.name
        for parameter in inspect.signature(family.build).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty
    ]
