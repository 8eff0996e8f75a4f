"""How each operation changes the signal that goes through it: one rule per operation.

A rule is registered for exact keys: function objects, or classes of modules (a subclass has the
rule of its nearest base class). Functions without a rule are tried for being elementwise; anything
else has unit variance and is said in the report.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import batchnorm, dropout, instancenorm, normalization, padding, pooling

import mpelu.functional
from mpelu.graph import LEAVES, UNKNOWN, Call, Ref, is_frozen, is_opaque, substitute
from mpelu.init.activations import (
    LINEAR,
    Activation,
    describe_module,
    exponential,
    find_activation,
    leaky,
    pointwise,
)
from mpelu.init.recurrent import hidden_second
from mpelu.init.signal import (
    Factor,
    Signal,
    Source,
    activated,
    added,
    concatenated,
    constant_signal,
    contracted,
    doubted,
    input_signal,
    mixed,
    multiplied,
    pooled,
    unknown_signal,
)
from mpelu.init.values import Value, average, fit

NORMS = (
    batchnorm._BatchNorm,
    instancenorm._InstanceNorm,
    normalization.GroupNorm,
    normalization.LayerNorm,
    normalization.RMSNorm,
)


@dataclass(frozen=True)
class Step:
    """One call with the signals that enter it."""

    call: Call
    signals: Sequence[Signal]
    """Of every earlier call, by index."""
    shapes: Sequence[torch.Size | None]
    """Of the output of every earlier call, by index."""
    factor: Factor
    """Second moment of an activation's output by a first-order rule."""

    @property
    def inputs(self) -> list[Signal]:
        """The signals that enter the call, in order."""
        return [self.signals[index] for index in self.call.fed_by]

    @property
    def first(self) -> Signal:
        """The signal of the first input."""
        return self.signals[self.call.fed_by[0]]

    def signal(self, value: Any) -> Signal:
        """The signal of an argument of the call, be it computed or constant."""
        return self.signals[value.index] if isinstance(value, Ref) else constant_signal(value)

    def shape(self, value: Any) -> torch.Size | None:
        """The shape of an argument of the call, where it is known."""
        if isinstance(value, Ref):
            return self.shapes[value.index]
        return value.shape if isinstance(value, Tensor) else None


Rule = Callable[[Step], "Signal | None"]
"""Returns the signal after the call, or None if the rule doesn't cover it."""
_Rule = TypeVar("_Rule", bound=Rule)

_RULES: dict[Any, Rule] = {}


def register_operation(*targets: Any) -> Callable[[_Rule], _Rule]:
    """Registers a rule for operations of your own: functions, or classes of modules.

    The rule takes a `Step` and returns the `Signal` after it. Modules of a registered class are not
    looked into, so weights inside them are left as they were.

    Example:
        >>> class Halve(nn.Module):
        ...     def forward(self, x):
        ...         return x / 2
        >>> @register_operation(Halve)
        ... def halved(step):
        ...     return multiplied(step.first, constant_signal(0.5))
    """

    def register(rule: _Rule) -> _Rule:
        for target in targets:
            _RULES[target] = rule
            if isinstance(target, type) and not target.__module__.startswith("torch.nn"):
                LEAVES.add(target)
        return rule

    return register


def propagate(step: Step) -> Signal:
    """The signal after any call but that of a layer."""
    target = step.call.target
    if target is None:
        return _input(step.call)
    if not step.call.fed_by:
        return _constant(step.call)
    rule = _rule_for(target)
    found = rule(step) if rule is not None else _without_rule(step)
    return unknown_signal(step.call, step.inputs) if found is None else found


def _input(call: Call) -> Signal:
    if call.name == UNKNOWN:
        return unknown_signal(call)
    return input_signal(call)


def _constant(call: Call) -> Signal:
    """Of a call that nothing feeds: what it computes is the same for every input."""
    try:
        value = call.target(*call.args, **call.kwargs)  # type: ignore[misc]
    except Exception:  # whatever a function called out of its context raises
        return unknown_signal(call)
    return (
        constant_signal(value) if isinstance(value, (Tensor, int, float)) else unknown_signal(call)
    )


def _rule_for(target: Any) -> Rule | None:
    if isinstance(target, nn.Module):
        return next((_RULES[kind] for kind in type(target).__mro__ if kind in _RULES), None)
    try:
        return _RULES.get(target)
    except TypeError:  # a callable that can't be hashed
        return None


def _named(*names: str) -> Iterator[Any]:
    """Every spelling of a function: of torch, a method, in place, an operator, functional."""
    for name in names:
        for place in (torch, Tensor, F, torch._C._nn, torch.special, operator, torch.linalg):
            for spelling in (name, f"{name}_", f"__{name}__", f"__i{name}__"):
                found = getattr(place, spelling, None)
                if callable(found):
                    yield found
        found = getattr(torch, f"_{name}", None)
        if callable(found):
            yield found
        if name in ("T", "mT", "H", "mH", "real", "data"):
            yield getattr(Tensor, name).__get__


def _without_rule(step: Step) -> Signal | None:
    """A module or function nobody registered: an activation, if trying shows that it is one."""
    call, target = step.call, step.call.target
    if not call.fed_by:
        return None
    if isinstance(target, nn.Module):
        activation = describe_module(target)
        if activation is not None:
            return activated(step.first, call.name, activation, step.factor)
        if not is_opaque(target):
            return None
        # Mostly checks of the input and changes of shape.
        doubt = f"fed through {call.name}, which has no rule; taken as passing its input on"
        return doubted(replace(step.first, before=None, layer=None), doubt)
    if len(call.fed_by) > 1:
        return None
    return _elementwise(step, probe=True)


def _elementwise(step: Step, probe: bool = False) -> Signal | None:
    call, function = step.call, step.call.target
    if not callable(function) or len(call.fed_by) != 1:
        return None

    def on_tensor(y: Tensor) -> Tensor:
        args, kwargs = substitute((call.args, call.kwargs), Ref, lambda _: y)
        output: Tensor = function(*args, **kwargs)
        return output

    has_parameters = any(isinstance(value, Tensor) and value.numel() > 1 for value in call.args)
    if probe or has_parameters:
        channels = step.first.channels or 1 if has_parameters else 1
        dims = 4 if call.shape is None else max(2, len(call.shape))
        activation = pointwise(call.name, on_tensor, channels, dims)
    else:
        activation = Activation(call.name, lambda y: on_tensor(y.clone()), kinks=_KINKS)
    if activation is None:
        return None
    after = activated(step.first, call.name, activation, step.factor)
    is_finite = math.isfinite(average(after.second)) and average(after.second) < _LARGEST
    return after if is_finite else None


_KINKS = (-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0, 6.0)
_LARGEST = 1e30


# Operations that keep the values


@register_operation(
    dropout._DropoutNd,
    nn.Flatten,
    nn.Identity,
    nn.Sequential,  # one without modules
    nn.Unflatten,
    nn.Upsample,
    padding._ConstantPadNd,
    padding._ReflectionPadNd,
    padding._ReplicationPadNd,
    padding._CircularPadNd,
    *_named(
        "alpha_dropout", "bfloat16", "clone", "contiguous", "cpu", "cuda", "detach", "double",
        "dropout", "dropout1d", "dropout2d", "dropout3d", "expand", "expand_as",
        "feature_alpha_dropout", "flatten", "float", "half", "interpolate", "masked_fill", "ravel",
        "requires_grad", "reshape", "reshape_as", "squeeze", "to", "type", "type_as", "unflatten",
        "unsqueeze", "upsample", "view", "view_as", "nan_to_num", "broadcast_to", "data",
    ),
)  # fmt: skip
def _keeps(step: Step) -> Signal | None:
    value = step.call.argument(0, "input")
    return constant_signal(value) if isinstance(value, Tensor) else step.first


@register_operation(
    nn.PixelShuffle,
    nn.PixelUnshuffle,
    nn.ChannelShuffle,
    nn.Unfold,
    *_named(
        "T", "mT", "H", "mH", "t", "adjoint", "channel_shuffle", "chunk", "flip", "gather",
        "index_select", "moveaxis", "movedim", "narrow", "permute", "pixel_shuffle",
        "pixel_unshuffle", "repeat", "repeat_interleave", "roll", "rot90", "select", "split",
        "split_with_sizes", "swapaxes", "swapdims", "take_along_dim", "tensor_split", "tile",
        "transpose", "triu", "tril", "unbind", "unfold", "diagonal", "topk", "sort",
        "masked_select",
    ),
)  # fmt: skip
def _mixes(step: Step) -> Signal | None:
    value = step.call.argument(0, "input")
    return mixed(constant_signal(value) if isinstance(value, Tensor) else step.first)


@register_operation(*_named("zeros_like", "new_zeros", "zeros", "empty_like", "new_empty"))
def _zeros(step: Step) -> Signal:
    shape = step.call.shape
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    return Signal(0.0, 0.0, 0.0, (), channels)


@register_operation(*_named("ones_like", "new_ones"))
def _ones(step: Step) -> Signal:
    return constant_signal(1.0)


@register_operation(*_named("full_like", "new_full"))
def _full(step: Step) -> Signal | None:
    value = step.call.argument(2 if step.call.name == "new_full" else 1, "fill_value")
    return constant_signal(value) if isinstance(value, (int, float)) else None


@register_operation(*_named("randn_like"))
def _noise(step: Step) -> Signal:
    return Signal(0.0, 1.0, 1.0, (Source("noise", LINEAR),))


@register_operation(*_named("where"))
def _where(step: Step) -> Signal | None:
    if len(step.call.args) != 3 or step.call.name != "where":
        return None
    condition, one, other = step.call.args
    if not isinstance(condition, (Ref, Tensor)):
        return None
    signals = [step.signals[value.index] for value in (one, other) if isinstance(value, Ref)]
    return (
        concatenated(signals, along_channels=False)
        if len(signals) > 1
        else next(iter(signals), None)
    )


# Arithmetic


def _pair(step: Step) -> tuple[Signal, Signal] | None:
    call = step.call
    one, other = call.argument(0, "input"), call.argument(1, "other")
    if any(value is None or isinstance(value, (str, complex)) for value in (one, other)):
        return None
    return step.signal(one), step.signal(other)


@register_operation(*_named("add", "radd"))
def _add(step: Step) -> Signal | None:
    pair = _pair(step)
    alpha = step.call.kwargs.get("alpha", 1)
    if pair is None:
        return None
    if alpha != 1:
        return added(pair[0], multiplied(pair[1], constant_signal(alpha)))
    return added(*pair)


@register_operation(*_named("sub", "subtract"))
def _subtract(step: Step) -> Signal | None:
    pair = _pair(step)
    return None if pair is None else added(*pair, sign=-1)


@register_operation(*_named("rsub"))
def _subtract_from(step: Step) -> Signal | None:
    pair = _pair(step)
    return None if pair is None else added(pair[1], pair[0], sign=-1)


@register_operation(*_named("neg", "negative"))
def _negate(step: Step) -> Signal:
    return multiplied(step.first, constant_signal(-1.0))


@register_operation(*_named("mul", "multiply", "rmul"))
def _multiply(step: Step) -> Signal | None:
    pair = _pair(step)
    return None if pair is None else multiplied(*pair)


@register_operation(*_named("div", "divide", "true_divide", "truediv"))
def _divide(step: Step) -> Signal | None:
    if step.call.kwargs.get("rounding_mode") is not None:
        return None
    return _quotient(step, step.call.argument(0, "input"), step.call.argument(1, "other"))


@register_operation(*_named("rdiv", "rtruediv"))
def _divide_into(step: Step) -> Signal | None:
    return _quotient(step, step.call.args[1], step.call.args[0])


def _quotient(step: Step, numerator: Any, divisor: Any) -> Signal | None:
    if not isinstance(divisor, Ref):
        if isinstance(divisor, (int, float)) and divisor == 0:
            return None
        return multiplied(step.signal(numerator), _finite(constant_signal(1 / divisor)))
    below = step.signals[divisor.index]
    # 1 / x has moments only where x stays away from zero.
    center, spread = average(below.mean), below.overall_variance
    if not center**2 > 9 * spread:
        return None
    inverse = replace(below, mean=1 / center, variance=spread / center**4, before=None, layer=None)
    return multiplied(step.signal(numerator), replace(inverse, factor=1 / center**2))


def _finite(signal: Signal) -> Signal:
    return signal if math.isfinite(average(signal.second)) else constant_signal(1.0)


@register_operation(*_named("pow", "float_power"))
def _power(step: Step) -> Signal | None:
    exponent = step.call.argument(1, "exponent")
    return _formula(step) if isinstance(exponent, (int, float)) else None


# Elementwise functions


def _function(
    *names: str,
) -> Callable[[Callable[[Call], Activation]], Callable[[Call], Activation]]:
    def register(describe: Callable[[Call], Activation]) -> Callable[[Call], Activation]:
        @register_operation(*_named(*names))
        def apply(step: Step) -> Signal | None:
            if len(step.call.fed_by) != 1:
                return None
            return activated(step.first, step.call.name, describe(step.call), step.factor)

        return describe

    return register


@_function("relu")
def _relu(call: Call) -> Activation:
    return leaky("relu", 0.0)


@_function("leaky_relu")
def _leaky_relu(call: Call) -> Activation:
    return leaky("leaky_relu", call.argument(1, "negative_slope", 0.01))


@_function("prelu")
def _prelu(call: Call) -> Activation:
    return leaky("prelu", call.argument(1, "weight"))


@_function("elu")
def _elu(call: Call) -> Activation:
    return exponential("elu", call.argument(1, "alpha", 1.0), 1.0)


@_function("celu")
def _celu(call: Call) -> Activation:
    alpha = call.argument(1, "alpha", 1.0)
    return exponential("celu", alpha, 1 / alpha)


@_function("selu")
def _selu(call: Call) -> Activation:
    return find_activation("selu", "selu")


@register_operation(mpelu.functional.mpelu)
def _mpelu(step: Step) -> Signal:
    alpha, beta = step.call.argument(1, "alpha"), step.call.argument(2, "beta")
    return activated(step.first, "mpelu", exponential("mpelu", alpha, beta), step.factor)


register_operation(
    *_named(
        "sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "hardswish", "hardsigmoid",
        "hardtanh", "relu6", "logsigmoid", "softsign", "tanhshrink", "softshrink", "hardshrink",
        "sin", "erf", "threshold",
    )
)(_elementwise)  # fmt: skip


@register_operation(
    *_named(
        "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal", "abs", "absolute",
        "square", "cos", "clamp", "clamp_min", "clamp_max", "clip",
    )
)  # fmt: skip
def _formula(step: Step) -> Signal | None:
    """Part of a formula, such as a norm: tangents at zero say nothing about it."""
    found, before = _elementwise(step), step.first
    if found is None:
        return None
    # Errors don't grow by it either: what a norm divides by has the same ones.
    return replace(
        found, factor=found.second, before=None, doubts=before.doubts, growth=before.growth
    )


@register_operation(nn.GLU, *_named("glu"))
def _gated(step: Step) -> Signal:
    gate = activated(mixed(step.first), "sigmoid", _SIGMOID, step.factor)
    return multiplied(mixed(step.first), gate)


_SIGMOID = Activation("sigmoid", torch.sigmoid)


# Norms


@register_operation(*NORMS)
def _norm_module(step: Step) -> Signal:
    module: Any = step.call.target
    signal = step.first
    mean: Value = 0.0
    variance: Value = 1.0
    if isinstance(module, nn.RMSNorm):
        mean, variance = _root_mean_square(signal)
    if is_frozen(module):
        values = {
            name: value.detach().to("cpu", torch.float64).reshape(-1)
            for name, value in (*module.named_parameters(), *module.named_buffers())
        }
        if "running_mean" in values:
            spread = values["running_var"] + module.eps
            mean = (signal.mean - values["running_mean"]) / spread.sqrt()
            variance = signal.variance / spread
        weight = values.get("weight", 1.0)
        mean, variance = mean * weight + values.get("bias", 0.0), variance * weight**2
    return _normalized(signal, mean, variance)


@register_operation(*_named("batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"))
def _norm_function(step: Step) -> Signal:
    call = step.call
    positions = {"batch_norm": 3, "instance_norm": 3}.get(call.name, 2)
    weight, bias = call.argument(positions, "weight"), call.argument(positions + 1, "bias")
    # Those that are trained are ones and zeros, or will be.
    scale = constant_signal(weight).mean if _is_fixed(weight) else 1.0
    shift = constant_signal(bias).mean if _is_fixed(bias) else 0.0
    mean: Value = 0.0
    variance: Value = 1.0
    if call.name == "rms_norm":
        mean, variance = _root_mean_square(step.first)
        shift = 0.0
    return _normalized(step.first, mean * scale + shift, variance * scale**2)


def _is_fixed(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.requires_grad


def _root_mean_square(signal: Signal) -> tuple[Value, Value]:
    second = average(signal.second) or 1.0
    return signal.mean / second**0.5, signal.variance / second


def _normalized(signal: Signal, mean: Value, variance: Value) -> Signal:
    """After a norm, which ends every doubt about the scale before it."""
    return replace(
        signal,
        mean=mean,
        variance=variance,
        factor=1.0,
        before=None,
        layer=None,
        doubts=(),
        growth=1.0,
    )


@register_operation(nn.LocalResponseNorm, *_named("local_response_norm"))
def _local_response(step: Step) -> Signal:
    return replace(step.first, before=None, layer=None)


@register_operation(*_named("normalize"))
def _unit_length(step: Step) -> Signal | None:
    shape = step.shape(step.call.argument(0, "input"))
    if shape is None:
        return None
    size = shape[step.call.argument(2, "dim", 1)]
    return _normalized(mixed(step.first), 0.0, 1 / max(1, size))


@register_operation(Tensor.__setitem__)
def _assign(step: Step) -> Signal:
    """The values assigned; what else the tensor holds is taken to be like them."""
    return mixed(step.signal(step.call.args[2]))


# Pooling and reductions

_ALONE = "fed by {name}, whose inputs are taken as independent"


def _count(call: Call, shapes: Sequence[torch.Size | None]) -> int:
    """How many inputs an output stands for; 1 where the shapes are not known."""
    before = shapes[call.fed_by[0]]
    if before is None or call.shape is None:
        return 1
    return max(1, before.numel() // max(1, call.shape.numel()))


def _pool(step: Step, kind: str, kernel: Any, dims: int) -> Signal:
    if isinstance(kernel, int):
        count = kernel**dims
    elif isinstance(kernel, (tuple, list)) and all(isinstance(size, int) for size in kernel):
        count = math.prod(kernel) if len(kernel) == dims else math.prod(kernel) ** dims
    elif kernel is not None:  # computed from a shape that is not known
        doubt = f"fed by {step.call.name} over a window of unknown size"
        return doubted(step.first, doubt)
    else:
        count = _count(step.call, step.shapes)
    found = pooled(step.first, kind, count)
    if _is_over_features(step.call):
        return found
    return doubted(found, _ALONE.format(name=step.call.name))


def _is_over_features(call: Call) -> bool:
    """Whether a mean is over the last dimension alone, as in a norm written by hand."""
    return not isinstance(call.target, nn.Module) and call.argument(1, "dim") in (-1, [-1], (-1,))


def _dims(name: str) -> int:
    return next((int(letter) for letter in name if letter in "123"), 2)


@register_operation(pooling._MaxPoolNd, pooling._AvgPoolNd)
def _pool_module(step: Step) -> Signal:
    name = type(step.call.target).__name__
    kernel = getattr(step.call.target, "kernel_size", None)
    return _pool(step, "max" if "Max" in name else "avg", kernel, _dims(name))


@register_operation(pooling._AdaptiveMaxPoolNd, pooling._AdaptiveAvgPoolNd)
def _adaptive_module(step: Step) -> Signal:
    kind = "max" if isinstance(step.call.target, pooling._AdaptiveMaxPoolNd) else "avg"
    return _pool(step, kind, None, 2)


@register_operation(
    *_named("max_pool1d", "max_pool2d", "max_pool3d"),
    *_named("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices"),
)
def _max_pool(step: Step) -> Signal:
    return _pool(step, "max", step.call.argument(1, "kernel_size"), _dims(step.call.name))


@register_operation(*_named("avg_pool1d", "avg_pool2d", "avg_pool3d"))
def _avg_pool(step: Step) -> Signal:
    return _pool(step, "avg", step.call.argument(1, "kernel_size"), _dims(step.call.name))


@register_operation(
    *_named("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "amax", "max")
)
def _maximum(step: Step) -> Signal | None:
    if len(step.call.fed_by) > 1:
        return None
    return _pool(step, "max", None, 2)


@register_operation(
    *_named("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "mean")
)
def _mean(step: Step) -> Signal | None:
    return _pool(step, "avg", None, 2) if step.call.fed_by else None


@register_operation(*_named("sum"))
def _sum(step: Step) -> Signal | None:
    if not step.call.fed_by or step.call.shape is None:
        return None
    count = _count(step.call, step.shapes)
    signal = mixed(step.first)
    mean, variance = average(signal.mean) * count, average(signal.variance) * count
    return replace(signal, mean=mean, variance=variance, factor=average(signal.factor) * count)


@register_operation(*_named("var"))
def _variance(step: Step) -> Signal | None:
    return _spread(step, step.first.overall_variance) if step.call.fed_by else None


@register_operation(*_named("std", "norm", "vector_norm"))
def _deviation(step: Step) -> Signal | None:
    if not step.call.fed_by:
        return None
    if step.call.name == "std":
        return _spread(step, max(0.0, step.first.overall_variance) ** 0.5)
    if step.call.shape is None:
        return None
    count = _count(step.call, step.shapes)
    return _spread(step, (count * average(step.first.second)) ** 0.5)


def _spread(step: Step, mean: float) -> Signal:
    """A statistic over many values, whose own variance is small."""
    count = _count(step.call, step.shapes)
    signal = mixed(step.first)
    variance = mean**2 / (2 * count)
    return replace(signal, mean=mean, variance=variance, factor=mean**2, before=None, layer=None)


# Joining


@register_operation(*_named("cat", "concat", "concatenate"))
def _concatenate(step: Step) -> Signal | None:
    values = step.call.argument(0, "tensors")
    if not isinstance(values, (tuple, list)):
        return None
    dim = step.call.argument(1, "dim", 0)
    parts = [
        value
        for value in values
        if isinstance(value, Ref) or (isinstance(value, Tensor) and value.numel() > 0)
    ]
    if not parts or not isinstance(dim, int):
        return None
    shape = step.call.shape
    along_channels = dim == 1 or dim == -3 or (dim == -1 and shape is not None and len(shape) == 2)
    signals = [step.signal(value) for value in parts]
    shapes = [step.shape(value) for value in parts]
    if not along_channels and shape is not None and all(each is not None for each in shapes):
        return _weighted(signals, [each.numel() for each in shapes if each is not None])
    return concatenated(signals, along_channels)


def _weighted(signals: list[Signal], sizes: list[int]) -> Signal:
    """The moments of parts of different sizes together."""
    joined = concatenated(signals, along_channels=False)
    total = sum(sizes)
    mean, second, factor = (
        sum(average(value) * size for value, size in zip(values, sizes, strict=True)) / total
        for values in (
            [signal.mean for signal in signals],
            [signal.second for signal in signals],
            [signal.factor for signal in signals],
        )
    )
    return replace(joined, mean=mean, variance=second - mean**2, factor=factor)


@register_operation(*_named("stack", "hstack", "vstack", "dstack"))
def _stack(step: Step) -> Signal | None:
    values = step.call.argument(0, "tensors")
    if not isinstance(values, (tuple, list)):
        return None
    return concatenated([step.signal(value) for value in values], along_channels=False)


@register_operation(*_named("pad", "constant_pad_nd"))
def _pad(step: Step) -> Signal | None:
    """Zeros for new channels; new positions don't count."""
    call, signal = step.call, step.first
    amounts = call.argument(1, "pad", ())
    dims = len(call.shape) if call.shape is not None else 4
    position = 2 * (dims - 2)
    if not isinstance(amounts, (tuple, list)) or len(amounts) <= position:
        return signal
    around = amounts[position : position + 2]
    if signal.channels is None or not all(isinstance(amount, int) for amount in around):
        return signal
    mean, variance, factor = (
        F.pad(fit(values, signal.channels), around)
        for values in (signal.mean, signal.variance, signal.factor)
    )
    channels = signal.channels + sum(around)
    return replace(
        signal, mean=mean, variance=variance, factor=factor, channels=channels, before=None,
        layer=None,
    )  # fmt: skip


@register_operation(*_named("getitem"))
def _index(step: Step) -> Signal:
    signal, index = step.first, step.call.argument(1, "index")
    if not isinstance(index, tuple) or len(index) < 2 or signal.channels is None:
        return mixed(signal)
    if not all(isinstance(part, slice) for part in index):
        return mixed(signal)
    if index[1] == slice(None):
        return replace(signal, layer=None)
    try:
        mean, variance, factor = (
            fit(values, signal.channels)[index[1]]
            for values in (signal.mean, signal.variance, signal.factor)
        )
    except TypeError:  # a bound computed from a shape that is not known
        return mixed(signal)
    if mean.numel() == 0:
        return mixed(signal)
    return replace(
        signal, mean=mean, variance=variance, factor=factor, channels=mean.numel(), before=None,
        layer=None,
    )  # fmt: skip


# Products of signals, and attention


@register_operation(
    *_named("matmul", "mm", "bmm", "rmatmul"), Tensor.__matmul__, Tensor.__rmatmul__
)
def _product(step: Step) -> Signal | None:
    one, other = step.call.argument(0, "input"), step.call.argument(1, "other")
    if other is None:
        other = step.call.argument(1, "mat2")
    shape = step.shape(one)
    if shape is None or other is None:
        return None
    found = contracted(step.signal(one), step.signal(other), shape[-1])
    return doubted(found, _ALONE.format(name=step.call.name))


@register_operation(torch.einsum, torch.functional.einsum)
def _einsum(step: Step) -> Signal | None:
    operands = step.call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    equation = step.call.args[0] if step.call.args else None
    if not isinstance(equation, str) or "->" not in equation or len(operands) != 2:
        return None
    terms, output = equation.replace(" ", "").replace("...", "").split("->")
    count = 1
    for term, value in zip(terms.split(","), operands, strict=True):
        shape = step.shape(value)
        if shape is None:
            return None
        # An ellipsis stands for leading dimensions.
        sizes = dict(zip(reversed(term), reversed(shape), strict=False))
        for name, size in sizes.items():
            if name not in output and (name not in terms.split(",")[0] or value is operands[0]):
                count *= size
    found = contracted(step.signal(operands[0]), step.signal(operands[1]), count)
    return doubted(found, _ALONE.format(name="einsum"))


@register_operation(nn.Softmax, nn.Softmax2d, *_named("softmax"))
def _softmax(step: Step) -> Signal | None:
    shape = step.call.shape
    if isinstance(step.call.target, nn.Module):
        dim = getattr(step.call.target, "dim", 1)
    else:
        dim = step.call.argument(1, "dim", -1)
    if shape is None or not isinstance(dim, int):
        return None
    count = shape[dim]
    mean = 1 / count
    second = _largest_second(count, step.first.overall_variance) / count
    signal = mixed(step.first)
    return replace(signal, mean=mean, variance=second - mean**2, factor=second)


def _largest_second(count: int, variance: float) -> float:
    """The sum of squares of a softmax over `count` scores of this variance: e^variance / count."""
    return min(1.0, math.exp(min(50.0, max(0.0, variance))) / count)


@register_operation(*_named("scaled_dot_product_attention"))
def _attend(step: Step) -> Signal | None:
    query, key, value = (
        step.call.argument(position, name)
        for position, name in enumerate(("query", "key", "value"))
    )
    shape, values = step.shape(key), mixed(step.signal(value))
    if shape is None:
        return doubted(values, _ALONE.format(name="attention"))
    scale = step.call.kwargs.get("scale") or shape[-1] ** -0.5
    scores = shape[-1] * scale**2 * average(step.signal(query).second)
    scores *= average(step.signal(key).second)
    variance = average(values.variance) * _largest_second(shape[-2], scores)
    found = replace(values, variance=variance, factor=variance + average(values.mean) ** 2)
    return doubted(found, _ALONE.format(name="attention"))


@register_operation(nn.Embedding, nn.EmbeddingBag, *_named("embedding", "embedding_bag"))
def _embed(step: Step) -> Signal:
    target = step.call.target
    weight = target.weight if isinstance(target, nn.Module) else step.call.argument(1, "weight")
    if not isinstance(weight, Tensor):
        return Signal(0.0, 1.0, 1.0, (Source("embedding", LINEAR),))
    return replace(mixed(constant_signal(weight)), sources=(Source("embedding", LINEAR),))


@register_operation(nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
def _recur(step: Step) -> Signal:
    second = hidden_second(type(step.call.target).__name__.removesuffix("Cell"))
    source = Source(step.call.name, Activation(type(step.call.target).__name__, torch.tanh))
    return Signal(0.0, second, second, (source,))


_KEEPERS, _NORMERS = frozenset([_keeps, _mixes]), frozenset([_norm_module, _norm_function])


def ends_in_norm(index: int, calls: Sequence[Call], consumers: Mapping[int, list[int]]) -> bool:
    """Whether the output of a call reaches nothing but a norm, which ignores its scale."""
    while len(consumers.get(index, ())) == 1:
        index = consumers[index][0]
        rule = _rule_for(calls[index].target)
        if rule in _NORMERS:
            return not is_frozen_norm(calls[index])
        if rule not in _KEEPERS:
            return False
    return False


def is_frozen_norm(call: Call) -> bool:
    return isinstance(call.target, nn.Module) and is_frozen(call.target)


_ADDITIONS = frozenset(_named("add", "radd", "sub", "subtract", "rsub"))


def added_signals(call: Call) -> bool:
    """Whether the call is an addition or subtraction."""
    if isinstance(call.target, nn.Module):
        return False
    try:
        return call.target in _ADDITIONS
    except TypeError:  # a callable that can't be hashed
        return False
