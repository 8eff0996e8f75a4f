"""Scales weights by measurement on example inputs, in one forward pass and one backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.elementwise import average
from mpelu.graph import (
    Call,
    Inputs,
    Key,
    Ref,
    Weights,
    arguments,
    evaluating,
    layer_of,
    record,
    substitute,
    tensors_in,
    unchanged,
)
from mpelu.init.fill import limits, writable
from mpelu.init.operations import is_known
from mpelu.init.plan import (
    FEW_NOTE,
    LARGEST,
    MEAN_NOTE,
    OFF,
    RANGE_NOTE,
    REUSED_NOTE,
    UNEVEN_NOTE,
    Plan,
)
from mpelu.init.signal import Note

TOLERANCE = 1.25
"""Factor between the measured and predicted variance of an output beyond which the weight is scaled
by measurement."""
DOUBTED_TOLERANCE = 1.02
"""The same factor for doubtful predictions."""
ROUNDING = 1e-10
"""Share of the predicted variance below which an output counts as constant."""
FEW, LEAST = 4, 32
"""Values per channel, and values in total, up to which a measurement gets a note."""
FEW_OUTPUTS = 2
"""Largest number of outputs for which a layer's mean square is measured instead of its variance.
Samples differ little behind many layers, so a variance of one would require a large mean."""
UNEVEN = 1.3
"""Factor between the variances of a batch's halves beyond which a measurement gets a note: a few
examples make up most of the variance, and another batch may have others."""
GRADIENT_TOLERANCE = 3.0
"""Factor of the last weight's gradient within which "balanced" mode keeps the gradients of weights
that end in a norm."""


@dataclass(slots=True)
class Measured:
    """What was measured for a weight on the inputs, and what was done about it."""

    variance: float | None = None
    """Variance of the layer's output at the first use of the weight, or the mean square if there
    are few outputs."""
    is_scaled: bool = False
    """Whether the weight was scaled by measurement."""
    is_balanced: bool = False
    """Whether the weight was scaled by its gradient."""
    notes: tuple[Note, ...] = ()


def measure_(
    model: nn.Module, inputs: Inputs, plans: Sequence[Plan], can_scale: bool
) -> dict[Key, Measured]:
    """Measures the output of each layer, and scales weights whose prediction fails.

    When the pass reaches a layer, everything before it is done. A layer whose output differs from
    its prediction by more than `TOLERANCE` is scaled and rerun on its input.

    Args:
        model: model whose weights are written as planned.
        inputs: inputs to call it with.
        plans: plan for each weight.
        can_scale: whether weights may be scaled.

    Returns:
        The outcome for each plan.
    """
    weights = Weights(model)
    by_key = {plan.key: plan for plan in plans}
    outcomes = {key: Measured() for key in by_key}
    parameters = dict(model.named_parameters())
    entering: Tensor | None = None

    def enter(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal entering
        layer = layer_of(call)
        if layer is not None:
            pairs = _pairs([*call.args, *call.kwargs.values()], [*args, *kwargs.values()])
            entering = next(value for ref, value in pairs if ref.index == layer.fed)

    def measure(call: Call, output: Tensor, run: Any) -> Tensor:
        layer = layer_of(call)
        plan = None if layer is None else by_key.get(weights.key(layer.weight))  # type: ignore[arg-type]
        is_hidden = torch._C._functorch.is_functorch_wrapped_tensor(output)  # inside vmap
        if layer is None or plan is None or is_hidden:
            return output
        outcome = outcomes[plan.key]
        is_few = layer.out_channels <= FEW_OUTPUTS
        observe = mean_square_of if is_few else variance_of
        variance = observe(output)
        if outcome.variance is not None:
            if _is_off(variance, outcome.variance, OFF):
                outcome.notes = (*outcome.notes, REUSED_NOTE)
            return output
        may_scale = can_scale and plan.is_trained and not plan.is_fixed
        estimate = variance
        if may_scale and (is_few or variance <= ROUNDING * (plan.predicted or 0.0)):
            # A few drawn weights say little about their scale; the expected variance does.
            assert entering is not None
            fed = layer.fan_in * plan.reached * mean_square_of(entering)
            expected = average(plan.std**2) * fed + plan.bias_std**2
            # The rounding error of a constant says nothing about the scale.
            constant = max(expected, mean_square_of(output))
            may_scale = is_few or variance > ROUNDING * constant
            estimate = expected if is_few else variance
        tolerance = DOUBTED_TOLERANCE if plan.doubts else TOLERANCE
        if may_scale and _is_off(estimate, plan.predicted, tolerance):
            assert plan.predicted is not None
            shift = plan.bias_std**2
            if estimate <= shift:  # from the biases alone
                return output
            factor = ((plan.predicted - shift) / (estimate - shift)) ** 0.5
            low, high = limits(layer.weight.dtype)
            scale = factor * mean_square_of(layer.weight) ** 0.5
            if not low <= scale <= high:
                factor *= min(max(scale, low), high) / scale if scale > 0 else 1.0
                outcome.notes = (*outcome.notes, RANGE_NOTE)
            layer.weight.mul_(factor)
            if plan.is_inverted:
                weights.write(plan.name, layer.weight)
            elif plan.is_computed or weights.is_computed(layer.weight):
                parameters[plan.name].mul_(factor)
            outcome.is_scaled = True
            output = run()
            variance = observe(output)
        outcome.variance = variance
        is_mean = variance > OFF * variance_of(output)
        if is_few and (is_mean or _is_off(variance, plan.predicted, OFF)):
            outcome.notes = (*outcome.notes, MEAN_NOTE)
        if output.numel() <= max(FEW * layer.out_channels, LEAST):
            outcome.notes = (*outcome.notes, FEW_NOTE)
        elif _is_uneven(output):
            outcome.notes = (*outcome.notes, UNEVEN_NOTE)
        return output

    record(
        model,
        inputs,
        before=enter,
        after=measure,
        written=_written(plans, parameters, weights),
        weights=weights,
        known=is_known,
    )
    return outcomes


def _pairs(refs: Sequence[Any], values: Sequence[Any]) -> Iterator[tuple[Ref, Tensor]]:
    """Each reference among the arguments of a call, also in lists, with its tensor."""
    for ref, value in zip(refs, values, strict=True):
        if isinstance(ref, Ref):
            yield ref, value
        elif isinstance(ref, (tuple, list)):
            yield from _pairs(ref, value)


def balance_gradients_(
    model: nn.Module,
    inputs: Inputs,
    plans: Sequence[Plan],
    outcomes: Mapping[Key, Measured],
    weights: Weights,
) -> list[Plan]:
    """Scales weights that end in a norm to bring their gradients near the last weight's.

    The norm removes the scale from the signal, but the gradient is inversely proportional to the
    scale of the weight. The loss is a random direction of the output. Returns the updated plans.
    """
    free = [
        plan for plan in plans if plan.ends_in_norm and plan.is_trained and not plan.is_computed
    ]
    last = next((plan for plan in reversed(plans) if plan.is_trained), None)
    if last is None or not free:
        return [*plans]
    parameters = dict(model.named_parameters())
    written = _written(plans, parameters, weights)
    norms = _gradient_norms(model, inputs, [last, *free], parameters, written)
    found = {plan.key: plan for plan in plans}
    for plan, norm in zip(free, norms[1:], strict=False):
        if not (norm > 0 and norms[0] > 0):
            continue
        ratio = norm / norms[0]
        factor = ratio / min(max(ratio, 1 / GRADIENT_TOLERANCE), GRADIENT_TOLERANCE)
        factor = min(max(factor, 1 / LARGEST), LARGEST)
        if factor == 1:
            continue
        with torch.no_grad():
            writable(plan, parameters).mul_(factor)
        predicted = (plan.predicted or 0.0) * factor**2
        found[plan.key] = replace(plan, std=plan.std * factor, predicted=predicted)
        outcome = outcomes[plan.key]
        outcome.is_balanced = True
        if outcome.variance is not None:
            outcome.variance *= factor**2
    return list(found.values())


def _gradient_norms(
    model: nn.Module,
    inputs: Inputs,
    plans: Sequence[Plan],
    parameters: Mapping[str, nn.Parameter],
    written: set[int],
) -> list[float]:
    """Returns the norms of the weights' gradients along a random direction of the output; none if
    the model has no backward pass."""
    norms = [0.0] * len(plans)
    by_name: dict[str, list[int]] = {}
    for index, plan in enumerate(plans):
        by_name.setdefault(plan.name, []).append(index)

    @torch.no_grad()
    def note(name: str, gradient: Tensor) -> Tensor | None:
        whole, parts = (
            parameters[name],
            [writable(plans[index], parameters) for index in by_name[name]],
        )
        laid = gradient
        if any(part is not whole for part in parts):
            laid = torch.empty_like(whole).copy_(
                gradient
            )  # so that its views have the layout of the weights' views
        for index, part in zip(by_name[name], parts, strict=True):
            offset = part.storage_offset() - whole.storage_offset()
            own = gradient if part is whole else laid.as_strided(part.shape, part.stride(), offset)
            norms[index] = own.norm().item()
        if gradient.layout != torch.strided:
            return None
        return gradient.new_zeros(()).expand_as(gradient)  # so that only one is kept at a time

    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    with (
        unchanged(list(model.modules()), written=written),
        evaluating(model.modules()),
        torch.enable_grad(),
    ):
        outputs = [
            tensor
            for tensor in tensors_in(model(*args, **kwargs))
            if tensor.is_floating_point() and tensor.requires_grad
        ]
        if not outputs:
            return []
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(
            outputs[0].shape, generator=generator, dtype=torch.float32, device="cpu"
        )
        direction = drawn.to(outputs[0])
        hooks = [parameters[name].register_hook(partial(note, name)) for name in by_name]
        chosen = [parameters[name] for name in by_name]
        try:
            torch.autograd.grad(outputs[0], chosen, direction, allow_unused=True)
        except RuntimeError:  # an inference-only model may overwrite what autograd needs
            return []
        finally:
            for hook in hooks:
                hook.remove()
    return norms


def _written(
    plans: Sequence[Plan], parameters: Mapping[str, nn.Parameter], weights: Weights
) -> set[int]:
    """Returns ids of the parameters that plans write; a pass needs no copy of them."""
    return {
        id(parameters[name])
        for plan in plans
        if plan.is_trained and not plan.left
        for name in weights.originals(plan.name)
    }


def _is_uneven(output: Tensor) -> bool:
    """Returns whether the variances of the two halves of a batch are far apart."""
    if output.dim() < 2 or output.size(0) < 2:
        return False
    first, second = (variance_of(half) for half in output.chunk(2))
    by_chance = math.exp(4 * math.sqrt(8 / output.numel()))  # four standard deviations
    return _is_off(first, second, max(UNEVEN, by_chance))


def _is_off(measured: float, predicted: float | None, tolerance: float) -> bool:
    """Returns whether both are positive numbers that differ by more than the tolerance."""
    if predicted is None or not (0 < measured < math.inf and predicted > 0):
        return False
    return not 1 / tolerance <= measured / predicted <= tolerance


def variance_of(output: Tensor) -> float:
    """Returns the variance over all elements."""
    return _observed(output, lambda values: values.var(correction=0))


def mean_square_of(output: Tensor) -> float:
    """Returns the mean square over all elements."""
    real = output.abs() if output.is_complex() else output
    return _observed(real, lambda values: values.square().mean())


def _observed(output: Tensor, moment: Callable[[Tensor], Tensor]) -> float:
    found = moment(output.to(torch.promote_types(output.dtype, torch.float32))).item()
    if _SMALLEST < found < _LARGEST:
        return found
    return moment(output.to("cpu", torch.float64)).item()  # squares outside float32's range


_SMALLEST, _LARGEST = 1e-30, 1e37
