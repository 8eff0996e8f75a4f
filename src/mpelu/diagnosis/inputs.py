"""The batch that a model is measured on: its moments, its scale, and the loss of its outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mpelu.graph import Inputs, arguments, reason, tensors_in


class DiagnosisError(ValueError):
    """Why a model can't be diagnosed, in words that need no others around them."""


def is_measurable(value: Tensor) -> bool:
    """Whether it has real numbers that can be read."""
    hidden = torch._C._functorch.is_functorch_wrapped_tensor(value)  # inside vmap
    return value.is_floating_point() and value.numel() > 0 and value.dim() > 0 and not hidden


def moments(values: Tensor, batch: int) -> tuple[float, float, float]:
    """Mean and variance of all values, and the variance between samples.

    Takes the mean first and then the squares of what is left, which is as exact as torch.var and
    many times faster along the first dimension.
    """
    samples = _by_sample(values.detach().double(), batch)
    means = samples.mean(0)
    mean = means.mean()
    inside = (samples - means).square_().mean()
    variance = inside + (means - mean).square_().mean()
    count = len(samples)
    between = inside * (count / (count - 1)) if count > 1 else variance
    return mean.item(), variance.item(), between.item()


def mean_square(values: Tensor) -> float:
    return values.detach().double().square().mean().item()


def _by_sample(values: Tensor, batch: int) -> Tensor:
    """As [batch, values of a sample], or [1, values] where samples can't be told apart."""
    if batch > 1 and values.size(0) % batch == 0:  # also windows or heads folded into the batch
        return values.reshape(batch, -1)
    if batch > 1 and values.dim() > 1 and values.size(1) == batch:
        return values.transpose(0, 1).reshape(batch, -1)
    return values.reshape(1, -1)


@dataclass(frozen=True, kw_only=True, slots=True)
class InputScale:
    """The scale of inputs of real numbers."""

    signal: float
    """Variance between samples: 0 if no input differs, 1 if only tokens do."""
    square: float = 1.0
    """Mean square; 1 for tokens."""
    spread: float = 1.0
    """Standard deviation of the channel that varies most, as a multiple of that of one that varies
    little: more than three quarters of the channels vary more."""


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


def spread_of(values: Tensor, axis: int) -> float:
    """How much the standard deviations of the channels differ; constant channels don't count."""
    channels = values.detach().double().movedim(axis, 0).flatten(1)
    deviations = channels.std(1, correction=0)
    varying = deviations[deviations > 0].sort().values
    return (varying[-1] / varying[len(varying) // 4]).item() if len(varying) > 3 else 1.0


def _tensors(inputs: Inputs) -> list[Tensor]:
    return tensors_in(arguments(inputs))


def _differs(values: Tensor, batch: int) -> bool:
    """Whether the samples differ, or the values of a single one."""
    if values.dim() == 0 or values.numel() == 0:
        return False
    first = values[:1] if batch > 1 else values.flatten()[0]
    return bool((values != first).any())


Loss = Callable[..., Tensor]


def differentiable(output: Any) -> list[Tensor]:
    """The tensors of a model's output that have a gradient."""
    return [each for each in tensors_in(output) if each.is_floating_point() and each.requires_grad]


def loss_of(output: Any, outputs: Sequence[Tensor], targets: Any, loss: Loss | None) -> Tensor:
    """The loss, or a random direction of the first output without targets and loss.

    Args:
        output: what the model returned.
        outputs: its tensors that have a gradient.
        targets: integers for cross entropy, others for squares.
        loss: from the output, and the targets if there are any, to a scalar.
    """
    if not outputs:
        raise DiagnosisError("diagnose: expected an output that depends on trained parameters")
    if targets is None and loss is None:
        return random_direction(outputs[:1])
    try:
        if loss is not None:
            value = loss(output) if targets is None else loss(output, targets)
        elif targets.is_floating_point():
            value = F.mse_loss(outputs[0], targets)
        else:
            value = F.cross_entropy(outputs[0], targets)
    except Exception as error:  # whatever a loss raises on an output that it isn't made for
        raise DiagnosisError(
            f"diagnose: expected a loss that takes the output, got: {reason(error)}"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        came = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise DiagnosisError(
            f"diagnose: expected a scalar loss that depends on the model, got {came}"
        )
    return value


def random_direction(outputs: Sequence[Tensor]) -> Tensor:
    """The sum of the outputs' values, with random weights that are always the same."""
    generator = torch.Generator().manual_seed(0)
    total = outputs[0].new_zeros((), dtype=torch.float32)
    for each in outputs:
        direction = torch.randn(each.shape, generator=generator).to(each.device)
        total = total + (each.float() * direction).sum() / math.sqrt(each.numel())
    return total
