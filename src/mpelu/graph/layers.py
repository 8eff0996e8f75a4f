"""Linear and convolutional layers and matrix products with a weight, as modules or functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mpelu.graph.calls import Call, Ref


@dataclass(frozen=True)
class Layer:
    """A weight and how a call uses it."""

    weight: Tensor
    """As the call takes it: a parameter, a view of one, or computed from one."""
    bias: Tensor | None
    fan_in: float
    fan_out: float
    channels: int
    """Of the input."""
    out_channels: int
    fed: int
    """Index of the call whose output is the layer's input."""
    groups: int = 1
    transposed: bool = False
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    padding: tuple[tuple[int, int], ...] = ()
    """Zeros before and after along each spatial axis; empty where other values are put there. Of
    a transposed layer: what is cut off its output."""
    is_standard: bool = True
    """Whether the weight has the layout of torch.nn: outputs first, or inputs if transposed."""


def layer_of(call: Call) -> Layer | None:
    """The layer a call runs, or None if it runs something else."""
    target = call.target
    if target is None or not call.fed_by:
        return None
    if isinstance(target, nn.Module):
        for kind in type(target).__mro__:
            if kind in _MODULES:
                return _MODULES[kind](call, target)
        return None
    try:
        rule = _FUNCTIONS.get(getattr(target, "overloadpacket", target))
    except TypeError:  # a callable that can't be hashed
        return None
    return None if rule is None else rule(call)


def fans(weight: Tensor, groups: int = 1, transposed: bool = False) -> tuple[int, int]:
    """How many inputs feed an output of the layer, and how many outputs an input feeds."""
    per_group = weight.size(0) // groups
    receptive = math.prod(weight.shape[2:])
    inputs, outputs = (per_group, weight.size(1)) if transposed else (weight.size(1), per_group)
    return inputs * receptive, outputs * receptive


def _by_axis(value: int | Sequence[int], dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))


def _linear(weight: Any, bias: Any, fed: int) -> Layer | None:
    if not _are_tensors(weight, bias) or weight.dim() != 2:
        return None
    return Layer(weight, bias, weight.size(1), weight.size(0), weight.size(1), weight.size(0), fed)


def _convolution(
    weight: Any,
    bias: Any,
    fed: int,
    stride: int | Sequence[int],
    padding: str | int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> Layer | None:
    if not _are_tensors(weight, bias):
        return None
    dims = weight.dim() - 2
    dilations = _by_axis(dilation, dims)
    if padding == "same":
        totals = [step * (size - 1) for step, size in zip(dilations, weight.shape[2:], strict=True)]
        zeros = tuple((total // 2, total - total // 2) for total in totals)
    else:
        amounts = _by_axis(0 if isinstance(padding, str) else padding, dims)
        zeros = tuple((amount, amount) for amount in amounts)
    fan_in, fan_out = fans(weight, groups)
    return Layer(
        weight,
        bias,
        fan_in,
        fan_out,
        weight.size(1) * groups,
        weight.size(0),
        fed,
        groups,
        kernel=tuple(weight.shape[2:]),
        stride=_by_axis(stride, dims),
        dilation=dilations,
        padding=zeros,
    )


def _transposed(
    weight: Any,
    bias: Any,
    fed: int,
    stride: int | Sequence[int],
    padding: int | Sequence[int],
    dilation: int | Sequence[int],
    groups: int,
) -> Layer | None:
    if not _are_tensors(weight, bias):
        return None
    dims = weight.dim() - 2
    steps = _by_axis(stride, dims)
    fan_in, fan_out = fans(weight, groups, transposed=True)
    # Its taps are spread over stride positions.
    return Layer(
        weight,
        bias,
        fan_in / math.prod(steps),
        fan_out,
        weight.size(0),
        weight.size(1) * groups,
        fed,
        groups,
        transposed=True,
        kernel=tuple(weight.shape[2:]),
        stride=steps,
        dilation=_by_axis(dilation, dims),
        padding=tuple((amount, amount) for amount in _by_axis(padding, dims)),
    )


def _are_tensors(weight: Any, bias: Any) -> bool:
    return (
        isinstance(weight, Tensor)
        and weight.numel() > 0
        and (bias is None or isinstance(bias, Tensor))
    )


def _linear_module(call: Call, module: Any) -> Layer | None:
    return _linear(module.weight, module.bias, call.fed_by[0])


def _convolution_module(call: Call, module: Any) -> Layer | None:
    layer = _convolution(*_settings(call, module))
    if layer is None or module.padding_mode == "zeros":
        return layer
    return replace(layer, padding=())


def _transposed_module(call: Call, module: Any) -> Layer | None:
    return _transposed(*_settings(call, module))


def _settings(call: Call, module: Any) -> tuple[Any, ...]:
    return (
        module.weight,
        module.bias,
        call.fed_by[0],
        module.stride,
        module.padding,
        module.dilation,
        module.groups,
    )


def _linear_call(call: Call) -> Layer | None:
    return _linear(call.argument(1, "weight"), call.argument(2, "bias"), call.fed_by[0])


def _convolution_call(call: Call) -> Layer | None:
    return _convolution(
        call.argument(1, "weight"),
        call.argument(2, "bias"),
        call.fed_by[0],
        call.argument(3, "stride", 1),
        call.argument(4, "padding", 0),
        call.argument(5, "dilation", 1),
        call.argument(6, "groups", 1),
    )


def _aten_convolution_call(call: Call) -> Layer | None:
    weight, bias, stride, padding, dilation, transposed, _, groups = call.args[1:9]
    if transposed:
        return _transposed(weight, bias, call.fed_by[0], stride, padding, dilation, groups)
    return _convolution(weight, bias, call.fed_by[0], stride, padding, dilation, groups)


def _transposed_call(call: Call) -> Layer | None:
    return _transposed(
        call.argument(1, "weight"),
        call.argument(2, "bias"),
        call.fed_by[0],
        call.argument(3, "stride", 1),
        call.argument(4, "padding", 0),
        call.argument(7, "dilation", 1),
        call.argument(6, "groups", 1),
    )


def _product(weight: Any, bias: Any, data: Any, *, on_left: bool = False) -> Layer | None:
    """A matrix product with a weight on one side: inputs are contracted, the rest are outputs."""
    if not isinstance(data, Ref) or not _is_weight(weight):
        return None
    rows, columns = weight.shape[-2:]
    inputs, outputs = (columns, rows) if on_left else (rows, columns)
    bias = bias if isinstance(bias, Tensor) else None
    return Layer(weight, bias, inputs, outputs, inputs, outputs, data.index, is_standard=False)


def _addmm_call(call: Call) -> Layer | None:
    return _product(call.argument(2, "mat2"), call.argument(0, "input"), call.argument(1, "mat1"))


def _matmul_call(call: Call) -> Layer | None:
    left, right = call.argument(0, "input"), call.argument(1, "other")
    return _product(right, None, left) or _product(left, None, right, on_left=True)


def _einsum_call(call: Call) -> Layer | None:
    """A contraction of one signal with one weight."""
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
            contracted = math.prod(size for name, size in sizes.items() if name not in output)
            other = terms[1 - terms.index(term)]
            kept = math.prod(
                size for name, size in sizes.items() if name in output and name not in other
            )
            return Layer(
                weight, None, contracted, kept, contracted, kept, data.index, is_standard=False
            )
    return None


def _grouped_call(call: Call) -> Layer | None:
    return _product(call.argument(1, "mat2"), None, call.argument(0, "input"))


def _is_weight(value: Any) -> bool:
    """Whether it is trained: a matrix of constants is not a layer."""
    return (
        isinstance(value, Tensor)
        and value.dim() > 1
        and value.numel() > 0
        and (isinstance(value, nn.Parameter) or value.requires_grad or _base_is_parameter(value))
    )


def _base_is_parameter(value: Tensor) -> bool:
    return isinstance(value._base, nn.Parameter)


_MODULES: dict[type, Callable[[Call, Any], Layer | None]] = {
    nn.Linear: _linear_module,
    nn.Conv1d: _convolution_module,
    nn.Conv2d: _convolution_module,
    nn.Conv3d: _convolution_module,
    nn.ConvTranspose1d: _transposed_module,
    nn.ConvTranspose2d: _transposed_module,
    nn.ConvTranspose3d: _transposed_module,
}
_FUNCTIONS: dict[Any, Callable[[Call], Layer | None]] = {
    F.linear: _linear_call,
    **dict.fromkeys([F.conv1d, F.conv2d, F.conv3d], _convolution_call),
    **dict.fromkeys(
        [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d], _transposed_call
    ),
    torch.addmm: _addmm_call,
    Tensor.addmm: _addmm_call,
    **dict.fromkeys(
        [
            torch.matmul, torch.mm, torch.bmm, Tensor.matmul, Tensor.mm, Tensor.bmm,
            Tensor.__matmul__, Tensor.__rmatmul__, operator.matmul,
        ],
        _matmul_call,
    ),
    **{
        function: _grouped_call
        for function in (
            getattr(torch, "_grouped_mm", None),
            getattr(F, "grouped_mm", None),
        )
        if function is not None
    },
    torch.ops.aten.convolution: _aten_convolution_call,
    torch.ops.aten.addmm: _addmm_call,
    torch.ops.aten.mm: _matmul_call,
    torch.ops.aten.bmm: _matmul_call,
    torch.einsum: _einsum_call,
    torch.functional.einsum: _einsum_call,
}  # fmt: skip
