"""Methods of initialization, one record each: how a weight's scale follows from what feeds it.

`initialize_` takes a method by its name or as an object that carries its options, such as
`Exact(mode="fan_out")`. To add a rule of your own, write one class and call `register_method`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor, nn

from mpelu.activations import describe
from mpelu.elementwise import ElementwiseFunction, Value, average
from mpelu.graph import Call
from mpelu.init.operations import is_plain
from mpelu.init.signal import Note, Signal

TARGET = 1.0
"""Target variance of every pre-activation, for methods that can choose it."""

DISTRIBUTIONS = ("normal", "orthogonal")
MODES = ("fan_in", "fan_out", "average")
NETWORK_MODES = (*MODES, "balanced")


def fan_of(mode: str, fan_in: float, fan_out: float) -> float:
    """Returns n of a rule in one of `MODES`."""
    return {"fan_in": fan_in, "fan_out": fan_out, "average": (fan_in + fan_out) / 2}[mode]


@torch.no_grad()
def fill_(weight: Tensor, std: float | Tensor, generator: torch.Generator | None) -> Tensor:
    """Fills a weight from N(0, std^2), with one std or one for each group of the layer."""
    if isinstance(std, Tensor) and std.numel() > 1:
        rows = std.repeat_interleave(weight.size(0) // std.numel())
        rows = rows.to(weight.device, weight.dtype).view(-1, *[1] * (weight.dim() - 1))
        return weight.normal_(0, 1, generator=generator).mul_(rows)
    return weight.normal_(0, float(std), generator=generator)


@dataclass(frozen=True, kw_only=True, slots=True)
class Incoming:
    """What a method knows about a weight: its size, and the moments of what feeds it."""

    fan: float
    """n of the rule, as returned by the method's `fan`."""
    fan_in: float
    fan_out: float
    moment: Value
    """E[x^2] of the inputs, a number or one for each group of the layer; for first-order methods,
    what their `first_order` makes of the activation before the layer."""
    signal: Signal
    """Signal that feeds the layer, with the activation before it."""
    reached: float = 1.0
    """Share of the layer's inputs that are not padding."""
    target: float = TARGET
    """Variance that the weight's products should have."""
    can_shift: bool = False
    """Whether biases may make up for missing variance: they are trained, one activation feeds the
    layer, and neither a norm nor the end of the network follows. Only for methods that set biases.
    """


@dataclass(frozen=True, kw_only=True)
class Method:
    """Base class of all methods: how the weights of a network are drawn.

    Args:
        distribution: "normal" or "orthogonal". Orthogonal matrices have the norm that a normal
            weight has on average; in convolutions of stride one they are at the kernel's center.
        keep_zeros: whether weights that are all zeros, such as the last one of a residual branch
            or the scale of its norm, are assumed to be so by design and stay zero. If False, or if
            every weight of the model is zero, they are set like all others.

    Example:
        >>> class LeCun(Method):
        ...     name = "lecun"
        ...     def rule(self, incoming):
        ...         return incoming.fan_in ** -0.5
        >>> model = nn.Sequential(nn.Linear(100, 10))
        >>> mpelu.init.initialize_(model, method=LeCun()).rows[0].std
        0.1
    """

    distribution: str = "normal"
    keep_zeros: bool = True

    name: ClassVar[str]
    """Name by which `initialize_` knows it."""
    reads_moments: ClassVar[bool] = False
    """Whether the scale follows from the moments of what feeds a weight. Then weights whose
    prediction fails on the inputs are scaled by measurement."""
    is_first_order: ClassVar[bool] = False
    """Whether it uses `first_order` of an activation instead of its exact second moment."""
    sets_biases: ClassVar[bool] = False
    """Whether `rule_and_bias` may return a variance for the biases, which are zero otherwise."""
    needs_inputs: ClassVar[bool] = False
    """Whether it requires inputs to measure the network on."""
    has_rule: ClassVar[bool] = True
    """Whether weights are drawn by a rule. Without one, predictions use their current values."""
    is_remedy: ClassVar[bool] = True
    """Whether `mpelu.diagnose` tries it on a network in which it finds faults."""

    def __post_init__(self) -> None:
        self._check("distribution", DISTRIBUTIONS)

    def _check(self, option: str, choices: Sequence[str]) -> None:
        if (value := getattr(self, option)) not in choices:
            raise ValueError(
                f"{type(self).__name__}: expected one of {list(choices)}, got {option} {value!r}"
            )

    def fan(self, fan_in: float, fan_out: float) -> float | None:
        """Returns n of the rule, or None if it has none."""
        return fan_in

    def rule(self, incoming: Incoming) -> Value:
        """Returns the standard deviation of a weight: one number or one for each group."""
        raise NotImplementedError(f"{type(self).__name__} requires a method rule(self, incoming)")

    def rule_and_bias(self, incoming: Incoming) -> tuple[Value, float]:
        """Returns the standard deviation of a weight and the variance of the layer's biases."""
        return self.rule(incoming), 0.0

    def draw_(self, weight: Tensor, std: Value, generator: torch.Generator | None) -> None:
        """Fills a weight with random numbers of this std; not called for orthogonal weights."""
        fill_(weight, std, generator)

    def first_order(self, activation: ElementwiseFunction) -> Value:
        """Returns the first-order value of E[f^2] / Var(y) for an activation f."""
        return 1.0

    def notes(self, signal: Signal) -> tuple[Note, ...]:
        """Returns notes about a weight that this signal feeds."""
        return ()

    def in_network(self, calls: Sequence[Call]) -> Method:
        """Returns the method to use for a model that makes these calls."""
        return self

    @property
    def balances(self) -> bool:
        """Whether weights that end in a norm are scaled by their gradients."""
        return False

    @property
    def label(self) -> str:
        """Name shown in reports, with its options."""
        return f"{self.name}, orthogonal" if self.distribution == "orthogonal" else self.name


METHODS: dict[str, type[Method]] = {}
"""Classes of methods by name."""
_Class = TypeVar("_Class", bound=type[Method])


def register_method(method: _Class) -> _Class:
    """Adds a method of your own to the table, for `initialize_`, `diagnose` and the lab.

    Args:
        method: subclass of `Method` with a `name`, whose `rule` determines the scale of a weight.
    """
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"register_method: expected a subclass of Method, got {method!r}")
    if not isinstance(name := getattr(method, "name", None), str):
        raise TypeError(f"register_method: {method.__name__} requires a name")
    taken = METHODS.get(name)
    if name == "own" or (taken is not None and taken.__module__ != method.__module__):
        raise ValueError(f"register_method: {name!r} is taken; give {method.__name__} another name")
    METHODS[name] = method
    return method


def find_method(method: str | Method) -> Method:
    """The method of a name with its default options, or the object itself."""
    if isinstance(method, Method):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]()
    if isinstance(method, type) and issubclass(method, Method):
        raise ValueError(f"initialize_: expected a method, got a class; write {method.__name__}()")
    close = difflib.get_close_matches(str(method).lower(), METHODS, 1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(
        f"initialize_: expected one of {list(METHODS)} or an object such as Exact(), got method "
        f"{method!r}{hint}"
    )


class AsTheyAre(Method):
    """Leaves weights as they are, for predictions about a model."""

    name = "as they are"
    has_rule = False


@dataclass(frozen=True, kw_only=True)
class Fitted(Method):
    """Base class of methods that read the moments of what feeds a weight.

    Args:
        mode: "fan_in", "fan_out" or their "average", used as n of the rule. "balanced" means
            "fan_in" and, given inputs, also scales weights that end in a norm until their gradients
            come near the last weight's. The norm keeps their scale out of the signal. This costs
            one more forward and backward pass.
        shapes: whether to set alpha and beta of every trained MPELU, with alpha beta = 1 and a beta
            that fits the depth of the network: two unrelated inputs leave the network with a
            correlation of `target`.
        target: C_f(0), above 0 and below 1; it implies `shapes`. By default, C_f(0) is at most 0.5
            with methods that set biases and 0.3 with others, beta is at most 1, and shapes already
            below that are unchanged.
        distribution: see `Method`.
        keep_zeros: see `Method`.
    """

    mode: str = "balanced"
    shapes: bool = False
    target: float | None = None
    reads_moments = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("mode", NETWORK_MODES)
        if self.target is not None:
            if not (isinstance(self.target, (int, float)) and 0 < self.target < 1):
                raise ValueError(
                    f"{type(self).__name__}: expected a target above 0 and below 1, got "
                    f"{self.target!r}"
                )
            object.__setattr__(self, "shapes", True)

    def fan(self, fan_in: float, fan_out: float) -> float:
        return fan_of(self._fan_mode, fan_in, fan_out)

    @property
    def balances(self) -> bool:
        return self.mode == "balanced"

    @property
    def _fan_mode(self) -> str:
        return "fan_in" if self.mode == "balanced" else self.mode

    @property
    def label(self) -> str:
        label = f"{self.name} {self._fan_mode}"
        return f"{label}, orthogonal" if self.distribution == "orthogonal" else label


@register_method
@dataclass(frozen=True, kw_only=True)
class Exact(Fitted):
    """Draws N(0, 1 / (n E[x^2])), which keeps every pre-activation's variance at one; the default.

    It accounts for the zeros around maps if their sizes are known.
    """

    name = "exact"

    def rule(self, incoming: Incoming) -> Value:
        return (incoming.target / (incoming.fan * incoming.reached * incoming.moment)) ** 0.5


@register_method
@dataclass(frozen=True, kw_only=True)
class Taylor(Fitted):
    """Draws N(0, 1 / (n t)), where t is E[f^2] of the tangents at zero: the paper's rule.

    t is never below the exact value. The tangents of MPELU lie outside it, but those of GELU and
    SiLU lie inside, so that weights based on them would let the signal grow from layer to layer.
    """

    name = "taylor"
    is_first_order = True

    def first_order(self, activation: ElementwiseFunction) -> Value:
        if has_no_tangent(activation):
            return second_moment(activation)
        moment = _tangent_moment(activation)
        if activation.has_closed_form:
            return moment
        exact = second_moment(activation)
        return exact if average(moment) < average(exact) else moment

    def rule(self, incoming: Incoming) -> Value:
        return (incoming.target / (incoming.fan * incoming.moment)) ** 0.5

    def notes(self, signal: Signal) -> tuple[Note, ...]:
        names = [each.activation.name for each in signal.sources if has_no_tangent(each.activation)]
        return (tangent_note(names[0]),) if names else ()


@register_method
@dataclass(frozen=True, kw_only=True)
class Critical(Exact):
    """Weights preserve the variance of gradients; biases make up for what the signal then loses."""

    name = "critical"
    sets_biases = True
    is_remedy = False

    def rule_and_bias(self, incoming: Incoming) -> tuple[Value, float]:
        if incoming.can_shift:
            signal, reached = incoming.signal, incoming.reached
            variance = 1 / (incoming.fan * reached * signal.slope_before)
            kept = variance * incoming.fan_in * reached * average(signal.second)
            missing = incoming.target - kept
            if missing > -1e-6:
                return variance**0.5, missing if missing > _ROUNDING else 0.0
        return self.rule(incoming), 0.0  # or the biases would need negative variance


@register_method
@dataclass(frozen=True, kw_only=True)
class Deep(Critical):
    """Acts as `Critical` with orthogonal weights and shapes by depth in networks without norms and
    shortcuts, and as `Exact` in any other.
    """

    distribution: str = "orthogonal"
    shapes: bool = True
    name = "deep"

    def in_network(self, calls: Sequence[Call]) -> Method:
        if is_plain(calls):
            return self
        return Exact(mode=self.mode, target=self.target, keep_zeros=self.keep_zeros)

    @property
    def label(self) -> str:
        return self.name


@register_method
@dataclass(frozen=True, kw_only=True)
class MSRA(Fitted):
    """Draws N(0, 2 / (n (1 + slope^2))), for ReLU, leaky ReLU and PReLU (He et al.); treats other
    activations as ReLU.
    """

    name = "msra"
    is_first_order = True

    def first_order(self, activation: ElementwiseFunction) -> Value:
        return 0.5 if activation.slope is None else (1 + activation.slope**2) / 2

    def rule(self, incoming: Incoming) -> Value:
        return (incoming.target / (incoming.fan * incoming.moment)) ** 0.5


@register_method
@dataclass(frozen=True, kw_only=True)
class Xavier(Method):
    """Draws N(0, 2 / (fan_in + fan_out)), for linear networks (Glorot and Bengio)."""

    name = "xavier"

    def fan(self, fan_in: float, fan_out: float) -> float:
        return fan_of("average", fan_in, fan_out)

    def rule(self, incoming: Incoming) -> Value:
        return float(self.fan(incoming.fan_in, incoming.fan_out) ** -0.5)


@register_method
@dataclass(frozen=True, kw_only=True)
class Gaussian(Method):
    """Draws every weight from N(0, std^2), the paper's baseline.

    Args:
        std: standard deviation (default: 0.01).
        distribution: see `Method`.
        keep_zeros: see `Method`.
    """

    std: float = 0.01
    name = "gaussian"
    is_remedy = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (isinstance(self.std, (int, float)) and 0 < self.std < math.inf):
            raise ValueError(f"Gaussian: expected std > 0, got {self.std!r}")

    def fan(self, fan_in: float, fan_out: float) -> None:
        return None

    def rule(self, incoming: Incoming) -> Value:
        return self.std

    def draw_(self, weight: Tensor, std: Value, generator: torch.Generator | None) -> None:
        # Weights with any std are multiples of the same numbers, drawn with the paper's std.
        fill_(weight, 0.01, generator)
        if std != 0.01:
            with torch.no_grad():
                weight.mul_(std / 0.01)


@register_method
@dataclass(frozen=True, kw_only=True)
class LSUV(Method):
    """Scales orthonormal weights until each layer's output on the inputs has unit variance or, with
    one or two outputs, a mean square of one (Mishkin and Matas, "All you need is a good init").

    It requires inputs and takes one forward pass. When the pass reaches a layer, all layers before
    it are done; the layer is rerun on its input until it is done too, and the pass continues. Batch
    norm uses the statistics of the batch, and dropout is off.

    Args:
        tolerance: largest remaining distance of a variance from one.
        max_rounds: number of times a layer may be scaled before RuntimeError is raised.
        keep_zeros: see `Method`.
    """

    tolerance: float = 0.02
    max_rounds: int = 20
    distribution: str = "orthogonal"
    name = "lsuv"
    needs_inputs = True
    has_rule = False

    def __post_init__(self) -> None:
        if self.distribution != "orthogonal":
            raise ValueError(f"LSUV: expected 'orthogonal' weights, got {self.distribution!r}")
        if not (isinstance(self.tolerance, (int, float)) and self.tolerance > 0):
            raise ValueError(f"LSUV: expected tolerance > 0, got {self.tolerance!r}")
        if not (isinstance(self.max_rounds, int) and self.max_rounds >= 1):
            raise ValueError(f"LSUV: expected max_rounds >= 1, got {self.max_rounds!r}")

    @property
    def label(self) -> str:
        return self.name


_ROUNDING = 1e-12
"""A variance of biases below this is what rounding leaves."""
_LEAST_SHARE = 0.01
"""Share of E[f^2] below which the tangents at zero aren't used."""


def second_moment(activation: ElementwiseFunction) -> Value:
    """Returns E[f^2] for a standard normal variable."""
    return activation.moments()[1]


def has_no_tangent(activation: ElementwiseFunction) -> bool:
    """Returns whether the tangents at zero tell nothing about an activation, such as ReLU^2."""
    if activation.has_closed_form:
        return False  # the tangents are at least those of ReLU
    return average(_tangent_moment(activation)) < _LEAST_SHARE * average(second_moment(activation))


def _tangent_moment(activation: ElementwiseFunction) -> Value:
    """Returns E[f^2] of the tangents at zero, as the paper does: for MPELU (1 + (a b)^2) / 2."""
    if activation.slope is not None:
        return (1 + activation.slope**2) / 2
    if activation.alpha is not None and activation.beta is not None:
        return activation.scale**2 * (1 + (activation.alpha * activation.beta) ** 2) / 2
    value, left, right = activation.at_zero()
    mixed = 2 * value * (right - left) / math.sqrt(2 * math.pi)
    return value**2 + mixed + (left**2 + right**2) / 2


def tangent_note(name: str) -> Note:
    """Returns a note about an activation that has no slope at zero for a first-order rule."""
    said = "its tangents at zero vanish; its exact second moment was used"
    return Note(f"{name}: {said}", f"of its activation: {said}", lasts=True)


def gain(activation: nn.Module | str, method: str | Method = "exact") -> float:
    """Returns the factor of 1 / sqrt(n) in the standard deviation of the weights that follow.

    Args:
        activation: module (with its own alpha and beta, averaged over channels) or name.
        method: "exact", "taylor" (the paper's), "msra" or "xavier" (linear: always 1).

    Example:
        >>> round(gain("elu"), 4), round(gain("elu", "taylor"), 4), round(gain("relu"), 4)
        (1.2452, 1.0, 1.4142)
    """
    chosen = find_method(method)
    if not (chosen.reads_moments or isinstance(chosen, Xavier)):
        fitted = [name for name, each in METHODS.items() if each.reads_moments]
        raise ValueError(f"gain: expected one of {[*fitted, 'xavier']}, got method {chosen.name!r}")
    if not isinstance(activation, (nn.Module, str)):
        raise TypeError(f"gain: expected a module or a name, got {type(activation).__name__}")
    found = describe(activation)
    if found is None:
        raise ValueError(
            f"gain: expected an elementwise activation, got {type(activation).__name__}"
        )
    if isinstance(chosen, Xavier):
        return 1.0
    moment = chosen.first_order(found) if chosen.is_first_order else second_moment(found)
    return 1 / math.sqrt(average(moment))
