"""The batch that a model is measured on: how many samples, and on what scale."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpelu.diagnosis.moments import is_measurable, moments
from mpelu.graph import Inputs, arguments, tensors_in


@dataclass(frozen=True, kw_only=True, slots=True)
class InputScale:
    """The scale of inputs of real numbers."""

    signal: float
    """Variance between samples: 0 if no input differs, 1 if only tokens do."""
    square: float = 1.0
    """Mean square; 1 for tokens."""


def batch_size(inputs: Inputs) -> int:
    """Size of the first dimension."""
    tensors = [each for each in _tensors(inputs) if each.dim() > 0]
    return tensors[0].size(0) if tensors else 1


def input_scale(inputs: Inputs) -> InputScale:
    """The scale of the first input that differs; others may be masks or constants."""
    batch = batch_size(inputs)
    others = []
    for each in _tensors(inputs):
        if not is_measurable(each):
            others.append(each)
            continue
        scale = scale_of(each, batch)
        if scale.signal > 0:
            return scale
    return InputScale(signal=1.0 if any(_differs(each, batch) for each in others) else 0.0)


def scale_of(values: Tensor, batch: int) -> InputScale:
    """The scale of a tensor of real numbers."""
    mean, variance, signal = moments(values, batch)
    return InputScale(signal=signal, square=variance + mean**2)


def _tensors(inputs: Inputs) -> list[Tensor]:
    return tensors_in(arguments(inputs))


def _differs(values: Tensor, batch: int) -> bool:
    """Whether the samples differ, or the values of a single one."""
    if values.dim() == 0 or values.numel() == 0:
        return False
    first = values[:1] if batch > 1 else values.flatten()[0]
    return bool((values != first).any())
