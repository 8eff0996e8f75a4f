"""One forward and backward pass of a model, and a row for each layer, norm and activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.weak import WeakTensorKeyDictionary

from mpelu.diagnosis.units import UnitShares, activation_of, shares_of
from mpelu.graph import Call, Inputs, Ref, Weights, arguments, name_of, record, tensors_in
from mpelu.init.layers import Layer, layer_of
from mpelu.init.operations import NORMS
from mpelu.init.planner import Planner

Loss = Callable[..., Tensor]
_PRODUCTS = ("mul", "multiply", "imul", "rmul")
_VIEWS = (
    "view", "reshape", "expand", "expand_as", "unsqueeze", "permute", "transpose", "getitem", "to",
    "float",
)  # fmt: skip
_NORM_NAMES = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosedLayer:
    """What comes out of a layer, a norm or an activation, over the whole batch."""

    position: int
    """How many layers with a weight the pass has reached, this one included."""
    name: str
    """Path of the module; for a function, what it is called with or comes after."""
    kind: str
    """"layer", "norm" or "activation"."""
    type: str
    """Class of the module, or name of the function."""
    mean: float
    variance: float
    """Over all values."""
    signal: float
    """Between the samples of the batch: the variance of each value over samples, averaged."""
    predicted: float | None = None
    """The variance that weights of this size give on average; of layers alone."""
    gradient: float | None = None
    """Mean square of the gradient with respect to the output; None if none arrives."""
    weight_gradient: float | None = None
    """Norm of the weight's gradient times norm of the weight: what a relative change of the weight
    does to the loss. Scales that a norm takes out don't matter to it. Of layers alone."""
    dead: float | None = None
    """Share of units with the same output and slope zero for every input of the batch; of
    activations alone."""
    saturated: float | None = None
    """Share of units with a slope below 0.01 at half of their inputs or more; None for activations
    that are flat on one side, such as ReLU."""
    linear: float | None = None
    """Share of units whose outputs are a linear function of their inputs on the batch."""

    @property
    def share(self) -> float:
        """The signal's share of the mean square: 0 if every sample gives the same values."""
        second = self.variance + self.mean**2
        return self.signal / second if second > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All that a pass tells about a model."""

    rows: tuple[DiagnosedLayer, ...]
    input_signal: float
    """Between the samples of the inputs; 1 for tokens."""
    loss: float
    calls: Sequence[Call]
    parameters: dict[str, Tensor | None]
    """Gradient of each trained parameter; None if no output depends on it."""
    gates: frozenset[str]
    """Names of activations whose output is multiplied with another tensor."""

    @property
    def layers(self) -> list[DiagnosedLayer]:
        """The rows of layers with a weight."""
        return [row for row in self.rows if row.kind == "layer"]


@dataclass(slots=True)
class _Observed:
    """What is known of a call before the backward pass."""

    row: DiagnosedLayer
    weight: str | None = None
    gradients: list[float] = field(default_factory=list)


def measure(model: nn.Module, inputs: Inputs, targets: Any, loss: Loss | None) -> Measurement:
    """Measures the model, which is left as it was.

    Trained batch norm uses the statistics of the batch, and dropout is off.

    Args:
        model: not wrapped.
        inputs: at least two samples.
        targets: of the loss.
        loss: from the output, and the targets if there are any, to a scalar. By default cross
            entropy for integer targets and squares for others; without targets a random direction
            of the output.
    """
    batch = _batch_size(inputs)
    weights = Weights(model)
    observed: dict[int, _Observed] = {}
    axes = WeakTensorKeyDictionary()
    pending: dict[str, UnitShares | None] = {}
    count, last = 0, "the input"
    result: dict[str, Any] = {}

    def before(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        pending.clear()
        function = activation_of(call, args, kwargs)
        if function is not None:
            values = args[0] if args else next(iter(kwargs.values()))
            pending["shares"] = shares_of(function, values, _axis(values, axes))

    def after(call: Call, output: Tensor, run: Any) -> Tensor:
        nonlocal count, last
        layer = layer_of(call)
        axes[output] = _axis_after(call, layer, output, axes)
        kind = _kind(call, layer, "shares" in pending)
        if kind is None or not _is_measurable(output):
            return output
        weight = None if layer is None else weights.name(layer.weight)
        name = _name(call, weight, last)
        if kind == "layer":
            count, last = count + 1, name
        mean, variance, signal = _moments(output, batch)
        shares = pending.get("shares")
        row = DiagnosedLayer(
            position=count,
            name=name,
            kind=kind,
            type=_type(call),
            mean=mean,
            variance=variance,
            signal=signal,
            dead=None if shares is None else shares.dead,
            saturated=None if shares is None else shares.saturated,
            linear=None if shares is None else shares.linear,
        )
        observed[id(call)] = entry = _Observed(row, weight)
        if output.requires_grad:
            output.register_hook(lambda grad: entry.gradients.append(_mean_square(grad)))
        return output

    def finish(output: Any) -> None:
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        outputs = _differentiable(output)
        value = _loss(output, outputs, targets, loss)
        found = torch.autograd.grad(
            value, list(trained.values()), allow_unused=True, retain_graph=len(outputs) > 1
        )
        gradients = dict(zip(trained, found, strict=True))
        unused = [name for name, each in gradients.items() if each is None]
        if unused and len(outputs) > 1:
            # Used by another output than the first.
            others = torch.autograd.grad(
                _random_direction(outputs), [trained[name] for name in unused], allow_unused=True
            )
            gradients |= {
                name: None if each is None else torch.full_like(each, math.nan)
                for name, each in zip(unused, others, strict=True)
            }
        result.update(loss=value.item(), gradients=gradients, trained=trained)

    calls, weights = record(model, inputs, before, after, weights=weights, finish=finish)
    gradients, trained = result["gradients"], result["trained"]
    predicted = _predicted(calls, weights)
    rows = [
        _completed(observed[id(call)], gradients, trained, predicted)
        for call in calls
        if id(call) in observed
    ]
    return Measurement(
        rows=tuple(rows),
        input_signal=_input_signal(inputs, batch),
        loss=result["loss"],
        calls=calls,
        parameters=gradients,
        gates=frozenset(_gates(calls, observed)),
    )


def _completed(
    entry: _Observed,
    gradients: dict[str, Tensor | None],
    trained: dict[str, Tensor],
    predicted: dict[str, float | None],
) -> DiagnosedLayer:
    gradient = sum(entry.gradients) if entry.gradients else None
    size = None
    found = None if entry.weight is None else gradients.get(entry.weight)
    if found is not None and entry.weight is not None:
        weight = trained[entry.weight].detach()
        size = found.double().norm().item() * weight.double().norm().item()
    expected = None if entry.weight is None else predicted.get(entry.weight)
    return replace(entry.row, gradient=gradient, weight_gradient=size, predicted=expected)


def _predicted(calls: Sequence[Call], weights: Weights) -> dict[str, float | None]:
    """The variance after each weight, if it had its size but no further structure."""
    try:
        plans = Planner(calls, weights, "lsuv", "fan_in").run()
    except (ValueError, ArithmeticError, RuntimeError):  # moments that aren't finite
        return {}
    return {plan.name: plan.predicted for plan in plans}


def _batch_size(inputs: Inputs) -> int:
    args, kwargs = arguments(inputs)
    tensors = [each for each in tensors_in((args, kwargs)) if each.dim() > 0]
    return tensors[0].size(0) if tensors else 1


def _input_signal(inputs: Inputs, batch: int) -> float:
    args, kwargs = arguments(inputs)
    found = [each for each in tensors_in((args, kwargs)) if _is_measurable(each)]
    return _moments(found[0], batch)[2] if found else 1.0


def _is_measurable(value: Tensor) -> bool:
    hidden = torch._C._functorch.is_functorch_wrapped_tensor(value)  # inside vmap
    return value.is_floating_point() and value.numel() > 0 and value.dim() > 0 and not hidden


def _moments(values: Tensor, batch: int) -> tuple[float, float, float]:
    """Mean and variance of all values, and the variance between samples."""
    values = values.detach().double()
    variance, mean = torch.var_mean(values, correction=0)
    between = variance
    if batch > 1:
        if values.size(0) % batch == 0:  # also where windows or heads were folded into the batch
            samples = values.reshape(batch, -1)
            between = samples.var(0, correction=1).mean()
        elif values.dim() > 1 and values.size(1) == batch:
            between = values.transpose(0, 1).reshape(batch, -1).var(0, correction=1).mean()
    return mean.item(), variance.item(), between.item()


def _mean_square(values: Tensor) -> float:
    return values.detach().double().square().mean().item()


def _axis(values: Any, axes: WeakTensorKeyDictionary) -> int:
    """The dimension of a tensor's channels."""
    known = axes.get(values)
    if known is not None:
        return int(known)
    return 1 if values.dim() in (2, 4, 5) else values.dim() - 1


def _axis_after(
    call: Call, layer: Layer | None, output: Tensor, axes: WeakTensorKeyDictionary
) -> int:
    if output.dim() < 2:
        return 0
    if layer is not None:
        return 1 if layer.weight.dim() > 2 else output.dim() - 1
    known = axes.get(output)  # an operation in place
    return int(known) if known is not None else _axis(output, axes)


def _kind(call: Call, layer: Layer | None, is_activation: bool) -> str | None:
    if layer is not None:
        return "layer"
    if is_activation:
        return "activation"
    if isinstance(call.target, NORMS) or name_of(call.target) in _NORM_NAMES:
        return "norm"
    return None


def _type(call: Call) -> str:
    target = call.target
    return type(target).__name__ if isinstance(target, nn.Module) else name_of(target)


def _name(call: Call, weight: str | None, last: str) -> str:
    if isinstance(call.target, nn.Module):
        return call.name
    if weight is not None:
        return weight.removesuffix(".weight")
    return f"{call.name} after {last}"


def _gates(calls: Sequence[Call], observed: dict[int, _Observed]) -> list[str]:
    """Activations whose output is multiplied with another tensor."""
    found = []
    for call in calls:
        tensors = [each for each in call.args if isinstance(each, (Ref, Tensor))]
        if name_of(call.target) not in _PRODUCTS or len(tensors) < 2:
            continue
        for index in call.fed_by:
            entry = observed.get(id(calls[_through_views(index, calls)]))
            if entry is not None and entry.row.kind == "activation":
                found.append(entry.row.name)
    return found


def _through_views(index: int, calls: Sequence[Call]) -> int:
    """The call behind views and reshapes."""
    while calls[index].name in _VIEWS and isinstance(calls[index].argument(0, "input"), Ref):
        index = calls[index].argument(0, "input").index
    return index


def _differentiable(output: Any) -> list[Tensor]:
    return [each for each in tensors_in(output) if each.is_floating_point() and each.requires_grad]


def _loss(output: Any, outputs: Sequence[Tensor], targets: Any, loss: Loss | None) -> Tensor:
    if not outputs:
        raise ValueError("diagnose: expected an output that depends on trained parameters")
    if loss is not None:
        value = loss(output) if targets is None else loss(output, targets)
    elif targets is None:
        return _random_direction(outputs[:1])
    elif targets.is_floating_point():
        value = F.mse_loss(outputs[0], targets)
    else:
        value = F.cross_entropy(outputs[0], targets)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        came = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"diagnose: expected a scalar loss that depends on the model, got {came}")
    return value


def _random_direction(outputs: Sequence[Tensor]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    total = outputs[0].new_zeros((), dtype=torch.float32)
    for each in outputs:
        direction = torch.randn(each.shape, generator=generator).to(each.device)
        total = total + (each.float() * direction).sum() / math.sqrt(each.numel())
    return total
