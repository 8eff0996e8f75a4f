"""The calls a model makes: what feeds each, and the layer it runs.

Layers are linear layers, convolutions and matrix products with a weight, as modules or as
functions.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpelu.graph.ops import KIND_OF

INPUT = "input"
"""Name of the call that represents an input of the model."""
UNKNOWN = "a tensor of unknown origin"
"""Name of the call that represents a tensor made where torch functions can't be watched."""


@dataclass(frozen=True)
class Ref:
    """Represents what an earlier call returned."""

    index: int

    @property
    def name(self) -> str:
        """Name that torch.fx prints in an f-string or an assertion."""
        return f"call_{self.index}"

    @property
    def meta(self) -> dict[str, Any]:
        """Place for torch.fx to leave remarks, which are ignored here."""
        return {}


@dataclass(eq=False)
class Call:
    """A call of a leaf module or of a torch function."""

    name: str
    """Path of the module, or name of the function without underscores."""
    target: nn.Module | Callable[..., Any] | None
    """None for an input of the model, and for a tensor of unknown origin."""
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fed_by: tuple[int, ...] = ()
    """Indices of the calls whose outputs this one takes, in order."""
    shape: torch.Size | None = None
    """Shape of the output, once it is known to be a single tensor."""
    operation: str = field(init=False)
    """Plain name of the operation, as in the tables of `mpelu.graph.ops`."""
    kind: str | None = field(init=False)
    """Kind of the operation, one of `KINDS`; None for an operation that has none."""

    def __post_init__(self) -> None:
        if isinstance(self.target, nn.Module):
            self.operation, self.kind = _operation_of(type(self.target))
        else:
            self.operation = self.name.strip("_").replace("_", "").lower()
            self.kind = KIND_OF.get(self.operation)

    @classmethod
    def of(
        cls, name: str, target: Any, args: Any, kwargs: Any, kind: type, read: Callable[[Any], Any]
    ) -> Call:
        """Creates a call after reading arguments of a kind; those from a call become a `Ref`."""
        fed_by: list[int] = []

        def note(value: Any) -> Any:
            found = read(value)
            if isinstance(found, Ref):
                fed_by.append(found.index)
            return found

        args = substitute(args, kind, note)
        kwargs = substitute(kwargs, kind, note) if kwargs else {}
        return cls(name, target, args, kwargs, tuple(fed_by))

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """Returns an argument, whether it was passed by position or by name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)


def name_of(function: Any) -> str:
    """Returns a function's or method's name for reports, such as "iadd" for Tensor.__iadd__."""
    function = getattr(function, "overloadpacket", function)  # drops the overload
    name = str(getattr(function, "__name__", function))
    if name == "__get__":  # a property, such as Tensor.T
        name = str(getattr(getattr(function, "__self__", None), "__name__", name))
    return name.strip("_")


def _operation_of(module: type[nn.Module]) -> tuple[str, str | None]:
    """Returns the operation and the kind of a module by the names of its class and its bases."""
    if module not in _OPERATIONS:
        names = list(map(plain_name, module.__mro__))
        kind = next(filter(None, map(KIND_OF.get, names)), None)
        _OPERATIONS[module] = names[0], kind
    return _OPERATIONS[module]


_OPERATIONS: weakref.WeakKeyDictionary[type, tuple[str, str | None]] = weakref.WeakKeyDictionary()


def plain_name(target: Any) -> str:
    """Returns the name of a function or a module's class, in lower case without underscores."""
    name = type(target).__name__ if isinstance(target, nn.Module) else name_of(target)
    return name.replace("_", "").lower()


def substitute(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Returns the value with all instances of a kind changed, also in containers, dataclasses."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, (tuple, list)):
        changed = [substitute(item, kind, change) for item in value]
        if isinstance(value, list):
            return changed
        return type(value)(*changed) if hasattr(value, "_fields") else tuple(changed)
    if isinstance(value, dict):
        items = {key: substitute(item, kind, change) for key, item in value.items()}
        if type(value) is dict:
            return items
        copied = copy.copy(value)
        copied.update(items)
        return copied
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = {
            each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init
        }
        new = {name: substitute(item, kind, change) for name, item in fields.items()}
        if any(new[name] is not fields[name] for name in fields):
            return dataclasses.replace(value, **new)
    return value


def tensors_in(value: Any) -> list[Tensor]:
    """Returns every tensor in a value, including those in dataclasses and other containers.

    Example:
        >>> len(tensors_in({"a": torch.zeros(1), "b": [torch.zeros(1), 2]}))
        2
    """
    if isinstance(value, Tensor):
        return [value]
    found: list[Tensor] = []
    seen: set[int] = set()

    def collect(item: Any, depth: int) -> None:
        if isinstance(item, Tensor):
            found.append(item)
            return
        if depth > 6 or id(item) in seen or isinstance(item, (nn.Module, type, str, int, float)):
            return
        seen.add(id(item))
        if isinstance(item, Mapping):
            children: Iterable[Any] = item.values()
        elif isinstance(item, (tuple, list, set, frozenset)):
            children = item
        else:
            children = getattr(item, "__dict__", {}).values()
        for child in list(children):
            collect(child, depth + 1)

    collect(value, 0)
    return found


@dataclass(frozen=True)
class Layer:
    """A weight and how a call uses it."""

    weight: Tensor
    """Tensor that the call takes: a parameter, a view of one, or computed from one."""
    bias: Tensor | None
    fan_in: float
    fan_out: float
    channels: int
    """Number of input channels."""
    out_channels: int
    fed: int
    """Index of the call whose output is the layer's input."""
    groups: int = 1
    transposed: bool = False
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    """Zeros before and after the input along each spatial axis, or what a transposed layer cuts off
    its output there; empty if the padding isn't zeros."""
    is_standard: bool = True
    """Whether the weight has the layout of torch.nn: outputs first, or inputs if transposed."""


def layer_of(call: Call) -> Layer | None:
    """Returns the layer a call runs, or None if it runs something else."""
    target: Any = call.target
    if target is None or not call.fed_by:
        return None
    if isinstance(target, nn.Module):
        rule = next((_LAYERS[kind] for kind in type(target).__mro__ if kind in _LAYERS), None)
    else:
        try:
            rule = _LAYERS.get(getattr(target, "overloadpacket", target))
        except TypeError:  # not hashable
            return None
    return None if rule is None else rule(call)


def fans(weight: Tensor, groups: int = 1, transposed: bool = False) -> tuple[int, int]:
    """Returns how many inputs feed an output of the layer, and how many outputs an input feeds."""
    per_group = weight.size(0) // groups
    receptive = math.prod(weight.shape[2:])
    inputs, outputs = (per_group, weight.size(1)) if transposed else (weight.size(1), per_group)
    return inputs * receptive, outputs * receptive


def _linear(call: Call) -> Layer | None:
    weight, bias = _given(call, "weight", "bias")
    if not _are_tensors(weight, bias) or weight.dim() != 2:
        return None
    outputs, inputs = weight.shape
    return Layer(weight, bias, inputs, outputs, inputs, outputs, call.fed_by[0])


def _convolution(call: Call) -> Layer | None:
    settings = _given(call, "weight", "bias", "stride", "padding", "dilation", "groups")
    layer = _convolved(call, *settings)
    if layer is None or getattr(call.target, "padding_mode", "zeros") == "zeros":
        return layer
    return dataclasses.replace(layer, padding=())


def _transposed(call: Call) -> Layer | None:
    names = ("weight", "bias", "stride", "padding", "dilation", "groups")
    order = ("weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    return _convolved(call, *_given(call, *names, order=order), transposed=True)


def _aten_convolution(call: Call) -> Layer | None:
    weight, bias, stride, padding, dilation, transposed, _, groups = call.args[1:9]
    settings = (weight, bias, stride, padding, dilation, groups)
    return _convolved(call, *settings, transposed=transposed)


_DEFAULTS = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}


def _given(call: Call, *names: str, order: Sequence[str] | None = None) -> list[Any]:
    """Returns settings by name: a module's attributes, or a function's arguments after input."""
    if isinstance(call.target, nn.Module):
        return [getattr(call.target, name) for name in names]
    places = order or names
    return [call.argument(places.index(name) + 1, name, _DEFAULTS.get(name)) for name in names]


def _convolved(
    call: Call,
    weight: Any,
    bias: Any,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
    *,
    transposed: bool = False,
) -> Layer | None:
    if not _are_tensors(weight, bias):
        return None
    kernel = tuple(weight.shape[2:])
    strides, dilations = _by_axis(stride, len(kernel)), _by_axis(dilation, len(kernel))
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilations, kernel, strict=True)]
        zeros = tuple((total // 2, total - total // 2) for total in totals)
    else:
        amounts = _by_axis(0 if isinstance(padding, str) else padding, len(kernel))
        zeros = tuple((amount, amount) for amount in amounts)
    fan_in, fan_out = fans(weight, groups, transposed)
    inputs, outputs = weight.size(1) * groups, weight.size(0)
    if transposed:
        inputs, outputs = weight.size(0), weight.size(1) * groups
    return Layer(
        weight,
        bias,
        # The taps of a transposed layer are spread over stride positions.
        fan_in / math.prod(strides) if transposed else fan_in,
        fan_out,
        inputs,
        outputs,
        call.fed_by[0],
        groups,
        transposed,
        kernel,
        strides,
        dilations,
        zeros,
    )


def _by_axis(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))


def _are_tensors(weight: Any, bias: Any) -> bool:
    return (
        isinstance(weight, Tensor)
        and weight.numel() > 0
        and (bias is None or isinstance(bias, Tensor))
    )


def _product(weight: Any, bias: Any, data: Any, *, on_left: bool = False) -> Layer | None:
    """Reads a matrix product with a weight on one side, whose contracted axis holds the inputs."""
    if not isinstance(data, Ref) or not _is_weight(weight):
        return None
    rows, columns = weight.shape[-2:]
    inputs, outputs = (columns, rows) if on_left else (rows, columns)
    bias = bias if isinstance(bias, Tensor) else None
    return Layer(weight, bias, inputs, outputs, inputs, outputs, data.index, is_standard=False)


def _addmm(call: Call) -> Layer | None:
    return _product(call.argument(2, "mat2"), call.argument(0, "input"), call.argument(1, "mat1"))


def _matmul(call: Call) -> Layer | None:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    return _product(right, None, left) or _product(left, None, right, on_left=True)


def _grouped_mm(call: Call) -> Layer | None:
    return _product(call.argument(1, "mat2"), None, call.argument(0, "input"))


def _einsum(call: Call) -> Layer | None:
    """Reads a contraction of one signal with one weight."""
    operands = call.args[1:]
    if len(operands) == 1 and isinstance(operands[0], (tuple, list)):
        operands = tuple(operands[0])
    equation = call.args[0] if call.args else None
    if not isinstance(equation, str) or "->" not in equation or len(operands) != 2:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    for term, weight, data in zip(terms, operands, reversed(operands), strict=True):
        if _is_weight(weight) and isinstance(data, Ref) and len(term) == weight.dim():
            sizes = dict(zip(term, weight.shape, strict=True))
            other = terms[1 - terms.index(term)]
            summed = math.prod(sizes[axis] for axis in sizes if axis not in output)
            kept = math.prod(sizes[axis] for axis in sizes if axis in output and axis not in other)
            return Layer(weight, None, summed, kept, summed, kept, data.index, is_standard=False)
    return None


def _is_weight(value: Any) -> bool:
    """Returns whether a value is a trained weight; a matrix of constants doesn't make a layer."""
    return (
        isinstance(value, Tensor)
        and value.dim() > 1
        and value.numel() > 0
        and (
            isinstance(value, nn.Parameter)
            or value.requires_grad
            or isinstance(value._base, nn.Parameter)
        )
    )


_ATEN = torch.ops.aten
_RULES: list[tuple[Callable[[Call], Layer | None], list[Any]]] = [
    (_linear, [nn.Linear, F.linear]),
    (_convolution, [nn.Conv1d, nn.Conv2d, nn.Conv3d, F.conv1d, F.conv2d, F.conv3d]),
    (_transposed, [nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]),
    (_transposed, [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]),
    (_aten_convolution, [_ATEN.convolution]),
    (_addmm, [torch.addmm, Tensor.addmm, _ATEN.addmm]),
    (_matmul, [torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm]),
    (_matmul, [Tensor.__matmul__, Tensor.__rmatmul__, operator.matmul, _ATEN.mm, _ATEN.bmm]),
    (_grouped_mm, [getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)]),
    (_einsum, [torch.einsum, torch.functional.einsum]),
]
_LAYERS = {target: rule for rule, targets in _RULES for target in targets if target is not None}
"""Rules by module class or by function."""
