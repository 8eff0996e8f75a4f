"""The table of activations: what the package knows about each, by name, module or function.

Importing it doesn't import torch; building or describing a module does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from torch import nn

    from mpelu.elementwise import ElementwiseFunction

KINDS = {
    "scale": "a height, such as MPELU's alpha, or its slope at zero",
    "rate": "a factor of the input, such as MPELU's beta or rate",
    "slope": "the slope of a straight line, such as PReLU's",
    "piece": "a threshold or slope of one of several pieces, such as SReLU's",
    "shape": "any other parameter of the shape",
}
"""Kinds of learnable parameters; `mpelu.param_groups` describes how each is trained."""


OPTIONS = ("alpha", "beta", "coordinates", "dim")
"""Options that an activation may take; coordinates are MPELU's, "paper" or "slope"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnableParameter:
    """A learnable parameter of an activation."""

    attribute: str
    """Name in the module."""
    kind: str = "shape"
    """One of `KINDS`."""
    symbol: str = ""
    """Name in tables and plots (default: the attribute)."""


@dataclass(frozen=True, kw_only=True)
class ActivationRecord:
    """What the package knows about an activation."""

    name: str
    label: str
    """Name in tables and legends."""
    build: Callable[..., nn.Module]
    """Function from the number of channels to a new module. Parameters called alpha, beta,
    coordinates or dim are options of the activation."""
    parameters: tuple[LearnableParameter, ...] = ()
    function: Callable[[Any], ElementwiseFunction] | None = None
    """Returns the closed form of the function a module computes; None to run the module."""
    slope: Callable[..., float] | None = None
    """Returns the slope just below zero for given options, if f(0) = 0 and the slope above zero is
    1; None to take it from `function`, whose parameters are rounded to float32."""
    module: str = ""
    """Class as "package.module:Class"; modules of this class are recognized."""

    @cached_property
    def options(self) -> dict[str, Any]:
        """Options among `OPTIONS` that it takes, with their defaults."""
        found = inspect.signature(self.build).parameters
        return {name: found[name].default for name in OPTIONS if name in found}

    def label_of(self, parameter: LearnableParameter) -> str:
        """Returns the label of a learnable parameter, such as "α of MPELU"."""
        return f"{parameter.symbol or parameter.attribute} of {self.label}"

    def make(self, channels: int, **options: Any) -> nn.Module:
        """Builds a new module.

        Args:
            channels: number of channels.
            **options: those of `OPTIONS` that the activation takes. None means not given.

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
        """Returns the options to build with; raises ValueError for one that isn't accepted."""
        given = {name: value for name, value in options.items() if value is not None}
        if "dim" in given and "dim" not in self.options:
            # Without parameters, it doesn't matter where the channels are.
            if given["dim"] != 1 and self.parameters:
                raise ValueError(
                    f"dim: expected 1, the channel dimension of {self.name}; got {given['dim']}"
                )
            del given["dim"]
        for name, value in given.items():
            if name not in self.options:
                raise ValueError(f"{name}: {self.name} takes no {name}, got {value!r}")
        return given

    def sample(self, channels: int = 4, **options: Any) -> nn.Module:
        """Builds a module on the CPU to try out, without advancing random number generators."""
        import torch

        with torch.random.fork_rng(devices=[]), torch.device("cpu"):
            return self.make(channels, **options)


# The constants of torch.nn.SELU, which does not export them.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def _torch(name: str, *arguments: float) -> Callable[[int], nn.Module]:
    """Returns a builder of a torch.nn class with fixed arguments."""

    def build(channels: int) -> nn.Module:
        from torch import nn

        module: nn.Module = getattr(nn, name)(*arguments)
        return module

    return build


def _torch_alpha(name: str, default: float) -> Callable[..., nn.Module]:
    """Returns a builder of a torch.nn class whose first argument is alpha."""

    def build(channels: int, alpha: float = default) -> nn.Module:
        return _torch(name, alpha)(channels)

    return build


def _prelu(channels: int, alpha: float = 0.25) -> nn.Module:
    from torch import nn

    return nn.PReLU(channels, alpha)


def _srelu(channels: int, alpha: float = 0.2, dim: int = 1) -> nn.Module:
    from mpelu.activations.parametric import SReLU

    return SReLU(channels, alpha, dim=dim)


def _pelu(channels: int, dim: int = 1) -> nn.Module:
    from mpelu.activations.parametric import PELU

    return PELU(channels, dim=dim)


def _mpelu(
    channels: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    coordinates: str = "paper",
    dim: int = 1,
) -> nn.Module:
    """Builds an MPELU that starts at the function of alpha and beta, in either coordinates."""
    from mpelu.modules import MIN_BETA, MPELU

    placed: dict[str, Any] = {} if dim == 1 else {"dim": dim}
    if coordinates == "slope" and beta >= MIN_BETA:  # a lower one is refused below
        return MPELU(channels, slope=alpha * beta, rate=beta, **placed)
    if coordinates not in ("paper", "slope"):
        raise ValueError(f"coordinates: expected 'paper' or 'slope', got {coordinates!r}")
    return MPELU(channels, alpha, beta, **placed)


def _leaky(slope: Callable[[Any], Any]) -> Callable[[Any], ElementwiseFunction]:
    """Returns `ActivationRecord.function` for modules with this slope below zero."""

    def function(module: Any) -> ElementwiseFunction:
        from mpelu.elementwise import leaky

        return leaky(slope(module), type(module).__name__)

    return function


def _exponential(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], ElementwiseFunction]:
    """Returns `ActivationRecord.function` for modules with this alpha, beta and scale (or 1)."""

    def function(module: Any) -> ElementwiseFunction:
        from mpelu.elementwise import exponential

        alpha, beta, *scale = values(module)
        return exponential(alpha, beta, scale[0] if scale else 1.0, type(module).__name__)

    return function


def _mpelu_function(module: Any) -> ElementwiseFunction:
    """Returns MPELU's function; with a rate of 0 everywhere, that of PReLU."""
    from mpelu.elementwise import exponential, leaky
    from mpelu.functional import MIN_BETA

    name = type(module).__name__
    if module.coordinates == "paper":
        return exponential(module.alpha, module.beta.clamp(min=MIN_BETA), name=name)
    slope, rate = module.slope.double(), module.rate.double()
    if not (rate > 0).any():
        return leaky(module.slope, name)
    rate = rate.clamp(min=MIN_BETA)  # a smaller one makes no difference to moments
    return exponential(slope / rate, rate, name=name)


def _pelu_values(module: Any) -> tuple[Any, Any, Any]:
    """Writes PELU as a / b times this function: y for y > 0, b (e^(y / b) - 1) otherwise."""
    a, b = module.a.double().clamp(min=module.MINIMUM), module.b.double().clamp(min=module.MINIMUM)
    return b, 1 / b, a / b


def _srelu_function(module: Any) -> ElementwiseFunction:
    from mpelu.elementwise import LINEAR, as_value
    from mpelu.graph import elementwise

    found = elementwise(module)
    assert found is not None
    thresholds = (module.left_threshold.double(), module.right_threshold.double())
    return found if found is LINEAR else replace(found, kinks=tuple(map(as_value, thresholds)))


_TORCH = "torch.nn.modules.activation"
TABLE: dict[str, ActivationRecord] = {
    record.name: record
    for record in (
        ActivationRecord(
            name="relu", label="ReLU", build=_torch("ReLU"), module=f"{_TORCH}:ReLU",
            function=_leaky(lambda m: 0.0),
        ),
        ActivationRecord(
            name="leaky_relu", label="leaky ReLU", build=_torch_alpha("LeakyReLU", 0.01),
            module=f"{_TORCH}:LeakyReLU", function=_leaky(lambda m: m.negative_slope),
        ),
        ActivationRecord(
            name="prelu", label="PReLU", build=_prelu, module=f"{_TORCH}:PReLU",
            function=_leaky(lambda m: m.weight), slope=lambda alpha: alpha,
            parameters=(LearnableParameter(attribute="weight", kind="slope", symbol="slope"),),
        ),
        ActivationRecord(
            name="rrelu", label="RReLU", build=_torch("RReLU", 1 / 8, 1 / 3),
            module=f"{_TORCH}:RReLU", function=_leaky(lambda m: (m.lower + m.upper) / 2),
        ),
        ActivationRecord(
            name="elu", label="ELU", build=_torch_alpha("ELU", 1.0), module=f"{_TORCH}:ELU",
            function=_exponential(lambda m: (m.alpha, 1.0)),
        ),
        ActivationRecord(
            name="celu", label="CELU", build=_torch_alpha("CELU", 1.0), module=f"{_TORCH}:CELU",
            function=_exponential(lambda m: (m.alpha, 1 / m.alpha)), slope=lambda alpha: 1.0,
        ),
        ActivationRecord(
            name="srelu", label="SReLU", build=_srelu,
            module="mpelu.activations.parametric:SReLU",
            function=_srelu_function, slope=lambda alpha: alpha,
            parameters=tuple(
                LearnableParameter(attribute=each, kind="piece", symbol=each.replace("_", " "))
                for each in ("right_threshold", "right_slope", "left_threshold", "left_slope")
            ),
        ),
        ActivationRecord(
            name="selu", label="SELU", build=_torch("SELU"), module=f"{_TORCH}:SELU",
            function=_exponential(lambda m: (_SELU_ALPHA, 1.0, _SELU_SCALE)),
        ),
        ActivationRecord(
            name="gelu", label="GELU", build=_torch("GELU"), module=f"{_TORCH}:GELU"
        ),
        ActivationRecord(
            name="silu", label="SiLU", build=_torch("SiLU"), module=f"{_TORCH}:SiLU"
        ),
        ActivationRecord(
            name="mish", label="Mish", build=_torch("Mish"), module=f"{_TORCH}:Mish"
        ),
        ActivationRecord(
            name="relu6", label="ReLU6", build=_torch("ReLU6"), module=f"{_TORCH}:ReLU6"
        ),
        ActivationRecord(
            name="hardswish", label="hard swish", build=_torch("Hardswish"),
            module=f"{_TORCH}:Hardswish",
        ),
        ActivationRecord(
            name="pelu", label="PELU", build=_pelu, module="mpelu.activations.parametric:PELU",
            function=_exponential(_pelu_values),
            parameters=(
                LearnableParameter(attribute="a", kind="scale"),
                LearnableParameter(attribute="b", kind="rate"),
            ),
        ),
        ActivationRecord(
            name="mpelu", label="MPELU", build=_mpelu, module="mpelu.modules:MPELU",
            function=_mpelu_function, slope=lambda alpha, beta, coordinates: alpha * beta,
            parameters=(
                LearnableParameter(attribute="alpha", kind="scale", symbol="α"),
                LearnableParameter(attribute="beta", kind="rate", symbol="β"),
                LearnableParameter(attribute="slope", kind="scale"),
                LearnableParameter(attribute="rate", kind="rate"),
            ),
        ),
        ActivationRecord(name="identity", label="identity", build=_torch("Identity")),
    )
}  # fmt: skip
"""Records by name, in the order of lists and help texts."""

BY_CLASS = {record.module: record for record in TABLE.values() if record.module}
"""Records by "package.module:Class". torch.nn.Identity isn't included, since it is used for much
else besides activations."""


def class_path(cls: type) -> str:
    """Formats a class as "package.module:Class"."""
    return f"{cls.__module__}:{cls.__qualname__}"


def _match(cls: type) -> tuple[ActivationRecord, Any] | None:
    """Returns the record of a class or of its nearest known base class, and that class."""
    for base in cls.__mro__:
        record = BY_CLASS.get(class_path(base))
        if record is not None:
            return record, base
    return None


def find_activation(module: nn.Module) -> ActivationRecord | None:
    """Returns the record of a module's class or of its nearest known base class.

    Example:
        >>> find_activation(torch.nn.PReLU()).parameters[0].attribute
        'weight'
    """
    found = _match(type(module))
    return None if found is None else found[0]


def find_function(function: Any) -> ActivationRecord | None:
    """Returns the record of the activation that a torch function, method or in-place form computes.

    Example:
        >>> find_function(torch.nn.functional.relu).name, find_function(torch.Tensor.relu_).name
        ('relu', 'relu')
    """
    try:
        return _functions().get(function)
    except TypeError:  # not hashable
        return None


@cache
def _functions() -> dict[Any, ActivationRecord]:
    """Returns the activations of torch.nn by the functions that bear their names."""
    import torch

    return {
        getattr(home, name): record
        for record in TABLE.values()
        if record.module.startswith("torch.nn.")
        for home in (torch.nn.functional, torch, torch.Tensor)
        for name in (record.name, f"{record.name}_")
        if hasattr(home, name)
    }


class ActivationParameter(NamedTuple):
    """A learnable parameter of an activation in a model."""

    name: str
    """Name in the model, such as "layer1.0.act.alpha"."""
    parameter: nn.Parameter
    kind: str
    """One of `KINDS`."""
    label: str
    """Label for tables and plots, such as "α of MPELU"."""


def learnable_parameters(model: nn.Module) -> Iterator[ActivationParameter]:
    """Yields the learnable parameters of a model's activations, in order of depth.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 2), mpelu.MPELU(2))
        >>> [found.name for found in learnable_parameters(model)]
        ['1.alpha', '1.beta']
    """
    for path, module in model.named_modules():
        record = find_activation(module)
        if record is None:
            continue
        known = {each.attribute: each for each in record.parameters}
        for attribute, parameter in module.named_parameters(recurse=False):
            # A subclass of a known class may have more parameters.
            about = known.get(attribute, LearnableParameter(attribute=attribute))
            name = f"{path}.{attribute}" if path else attribute
            yield ActivationParameter(name, parameter, about.kind, record.label_of(about))


def describe(activation: nn.Module | str) -> ElementwiseFunction | None:
    """Returns the elementwise function that a module computes, with slopes at zero and moments.

    Uses a closed form if the table has one; otherwise runs a copy of the module.

    Args:
        activation: module, or name of an activation in the table or in torch.nn, such as
            "relu" or "tanh".

    Returns:
        The function, or None if the module isn't elementwise or has no values (lazy or meta).

    Raises:
        ValueError: if no elementwise activation has that name.

    Example:
        >>> mean, second = describe(torch.nn.ReLU()).moments()
        >>> round(second, 4)
        0.5
        >>> round(describe("gelu").squared_slope(), 4)
        0.4559
    """
    from torch.nn.parameter import is_lazy

    from mpelu.graph import NORMS, elementwise

    if isinstance(activation, str):
        return _named(activation)
    if any(is_lazy(each) or each.is_meta for each in activation.parameters()):
        return None
    # A norm layer looks elementwise in evaluation mode.
    if any(isinstance(each, NORMS) for each in activation.modules()):
        return None
    return known_function(activation) or elementwise(activation)


def _named(name: str) -> ElementwiseFunction:
    from torch import nn

    from mpelu.elementwise import LINEAR

    plain = name.replace("_", "").lower()
    if plain in ("linear", "identity"):
        return LINEAR
    builders: dict[str, Callable[[], nn.Module]] = {
        each.lower(): getattr(nn, each) for each in nn.modules.activation.__all__
    }
    builders |= {each.replace("_", ""): partial(TABLE[each].make, 1) for each in TABLE}
    try:
        found = describe(builders[plain]())
    except (KeyError, TypeError):  # no such name, or one without defaults, such as Threshold
        found = None
    if found is None:
        raise ValueError(f"expected the name of an elementwise activation, got {name!r}")
    return found


def known_function(module: nn.Module) -> ElementwiseFunction | None:
    """Returns a module's function in closed form, without running it; None if there is none.

    Example:
        >>> known_function(torch.nn.LeakyReLU(0.1)).slope
        0.1
    """
    found = _match(type(module))
    if found is None:
        return None
    record, base = found
    # A subclass of a known class may compute something else.
    if record.function is None or type(module).forward is not base.forward:
        return None
    return record.function(module)
