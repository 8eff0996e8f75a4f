"""One forward and backward pass of a model, and a row for each layer, norm and activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from mpelu.diagnosis.inputs import (
    InputScale,
    Loss,
    batch_size,
    differentiable,
    input_scale,
    is_measurable,
    loss_of,
    mean_square,
    moments,
    random_direction,
    scale_of,
    spread_of,
)
from mpelu.diagnosis.rows import DiagnosedLayer, Finding, Measurement
from mpelu.diagnosis.structure import Flow, followed_calls, gate_calls, has_equal_rows, mistake_in
from mpelu.diagnosis.units import UnitShares, activation_of, own_axis, shares_of
from mpelu.graph import (
    NORM_KINDS,
    Call,
    Channels,
    Inputs,
    Layer,
    Weights,
    arguments,
    find_channels,
    layer_of,
    name_of,
    record,
    tensors_in,
)
from mpelu.init.planner import Planner


@dataclass(slots=True)
class _Observed:
    """What is known of a call before the backward pass."""

    row: DiagnosedLayer
    layer: Layer | None = None
    weight: str | None = None
    unbiased_square: float | None = None
    """Mean square of the output without the bias."""
    gradients: list[float] = field(default_factory=list)
    is_followed: bool = False
    """Whether its output reaches the weight of a later call."""
    is_gate: bool = False
    """Whether its output is multiplied with another tensor."""


class _Observer:
    """Measures every call of a pass as it happens."""

    def __init__(
        self, weights: Weights, inputs: Inputs, channels: Sequence[Channels | None]
    ) -> None:
        self.observed: dict[int, _Observed] = {}
        """By the id of the call."""
        self.fed: InputScale | None = None
        self.graded: dict[int, bool] = {}
        """Whether the output of a call has a gradient, by the id of the call."""
        self.makers = WeakTensorKeyDictionary()
        """The id of the call that returned a tensor last."""
        self.mistakes: list[Finding] = []
        self._weights, self._channels = weights, channels
        self._batch = batch_size(inputs)
        self._shapes = {each.shape for each in tensors_in(arguments(inputs))}
        self._shares: UnitShares | None = None
        self._count, self._last = 0, "the input"

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunction():  # so that measuring isn't watched, which is slow
            self._shares = None
            activation = activation_of(call, args, kwargs)
            if activation is not None:
                self._shares = shares_of(activation, self._axis(call, activation.values.dim()))
            elif self.fed is None and (layer := layer_of(call)) is not None:
                self.fed = self._scale_of_data(tensors_in((args, kwargs)), layer)
            mistake = mistake_in(call.target, args, kwargs, self._batch)
            if mistake is not None:
                kind, text = mistake
                name = _name(call, None, self._last)
                self.mistakes.append(
                    Finding(kind=kind, text=f"`{name}`: {text}", layer=name, position=self._count)
                )

    def after(self, call: Call, output: Tensor, run: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            self._observe(call, output)
        return output

    def _axis(self, call: Call, ndim: int) -> int:
        """The dimension of an activation's channels: its own, or that of what made its input."""
        axis = own_axis(call)
        if axis is not None:
            return axis % ndim
        made = [self._channels[index] for index in call.fed_by if index < len(self._channels)]
        found = next((each for each in made if each is not None), None)
        if found is not None:
            return found.position(ndim)
        return 1 if ndim in (2, 4, 5) else ndim - 1

    def _scale_of_data(self, tensors: Sequence[Tensor], layer: Layer) -> InputScale | None:
        """Of the first tensor that isn't a parameter."""
        data = [each for each in tensors if is_measurable(each) and not self._weights.name(each)]
        if not data:
            return None
        scale = scale_of(data[0], self._batch)
        axis = data[0].dim() - len(layer.kernel) - 1
        # Of what a model has computed, such as sines of a time, some channels may hardly vary.
        is_input = axis > 0 and data[0].shape in self._shapes
        return replace(scale, spread=spread_of(data[0], axis)) if is_input else scale

    def _observe(self, call: Call, output: Tensor) -> None:
        if output.is_floating_point() or output.is_complex():
            self.graded[id(call)] = output.requires_grad
        self.makers[output] = id(call)
        layer = layer_of(call)
        kind = _kind(call, layer, self._shares is not None)
        if kind is None or not is_measurable(output):
            return
        weight = None if layer is None else self._weights.name(layer.weight)
        name = _name(call, weight, self._last)
        if kind == "layer":
            self._count, self._last = self._count + 1, name
        mean, variance, signal = moments(output, self._batch)
        shares = self._shares
        row = DiagnosedLayer(
            position=self._count,
            name=name,
            kind=kind,
            type=_type(call),
            mean=mean,
            variance=variance,
            signal=signal,
            share=_share(signal, variance + mean**2),
            units=None if shares is None else shares.units,
            dead=None if shares is None else shares.dead,
            saturated=None if shares is None else shares.saturated,
            linear=None if shares is None else shares.linear,
        )
        square = None if layer is None else _unbiased_square(output, layer)
        entry = _Observed(row, layer, weight, square)
        self.observed[id(call)] = entry
        if output.requires_grad:
            output.register_hook(lambda grad: entry.gradients.append(mean_square(grad)))


def channels_of(model: nn.Module, inputs: Inputs) -> list[Channels | None]:
    """Where the output of each call has its channels.

    From a pass of its own, because what takes a tensor may tell where they are.
    """
    calls, _ = record(model, inputs, finish=lambda _: None)  # with a graph, as in `measure`
    return find_channels(calls)


def measure(
    model: nn.Module,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    channels: Sequence[Channels | None],
) -> Measurement:
    """Measures the model, which is left as it was.

    Trained batch norm uses the statistics of the batch, and dropout is off.

    Args:
        model: not wrapped.
        inputs: at least two samples.
        targets: of the loss.
        loss: from the output, and the targets if there are any, to a scalar. By default cross
            entropy for integer targets and squares for others; without targets a random direction
            of the output.
        channels: of the output of each call.
    """
    weights = Weights(model)
    observer = _Observer(weights, inputs, channels)
    ends: list[int] = []
    losses: list[float] = []
    trained: dict[str, nn.Parameter] = {}
    gradients: dict[str, Tensor | None] = {}

    def finish(output: Any) -> None:
        trained.update(
            (name, each) for name, each in model.named_parameters() if each.requires_grad
        )
        outputs = differentiable(output)
        ends.extend(observer.makers[each] for each in tensors_in(output) if each in observer.makers)
        if not any(len(each) == batch_size(inputs) for each in outputs if each.dim()):
            observer.mistakes = [each for each in observer.mistakes if each.kind != "softmax"]
        with _LossWatcher(batch_size(inputs)) as watcher:
            value = loss_of(output, outputs, targets, loss)
        observer.mistakes += watcher.mistakes
        losses.append(value.item())
        gradients.update(_gradients(value, outputs, trained))

    calls, weights = record(
        model, inputs, observer.before, observer.after, weights=weights, finish=finish
    )
    observed = observer.observed
    predicted = _predicted(calls, weights)
    followed = followed_calls(calls)
    gates = {id(call) for call in gate_calls(calls)}
    for call in calls:
        if id(call) in observed:
            entry = observed[id(call)]
            entry.is_followed, entry.is_gate = id(call) in followed, id(call) in gates
    rows = {
        index: _completed(observed[id(call)], gradients, trained, predicted)
        for index, call in enumerate(calls)
        if id(call) in observed
    }
    flow = Flow(calls, observer.graded)
    return Measurement(
        rows=tuple(rows.values()),
        inputs=input_scale(inputs),
        fed=observer.fed,
        loss=losses[0],
        flow=flow,
        at=rows,
        cut=_cut_off(flow, set(ends), weights, gradients),
        mistakes=tuple(observer.mistakes),
        parameters=gradients,
    )


class _LossWatcher(TorchFunctionMode):
    """Looks at what the functions of a loss are called with."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.mistakes: list[Finding] = []
        self._batch = batch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        mistake = mistake_in(func, args, kwargs or {}, self._batch)
        if mistake is not None and mistake[0] == "loss":
            text = f"the loss, `{name_of(func)}`: {mistake[1]}"
            self.mistakes.append(Finding(kind="loss", text=text))
        return func(*args, **kwargs or {})


def _cut_off(
    flow: Flow, ends: set[int], weights: Weights, gradients: dict[str, Tensor | None]
) -> dict[str, int]:
    """The parameters that the output depends on, but that have no gradient."""
    lost = {name for name, each in gradients.items() if each is None}
    found: dict[str, int] = {}
    reaching = (
        flow.before(i for i, call in enumerate(flow.calls) if id(call) in ends) if lost else ()
    )
    for index in sorted(reaching):
        call = flow.calls[index]
        own = call.target.parameters() if isinstance(call.target, nn.Module) else ()
        names = {weights.name(each) for each in (*own, *tensors_in((call.args, call.kwargs)))}
        found.update((name, index) for name in names if name in lost)
    return found


def _gradients(
    value: Tensor, outputs: Sequence[Tensor], trained: dict[str, nn.Parameter]
) -> dict[str, Tensor | None]:
    """The gradient of each parameter; NaN for one that only other outputs depend on."""
    several = len(outputs) > 1
    found = torch.autograd.grad(
        value, list(trained.values()), allow_unused=True, retain_graph=several
    )
    gradients: dict[str, Tensor | None] = dict(zip(trained, found, strict=True))
    unused = [name for name, each in gradients.items() if each is None]
    if unused and several:
        others = torch.autograd.grad(
            random_direction(outputs), [trained[name] for name in unused], allow_unused=True
        )
        gradients |= {
            name: None if each is None else torch.full_like(each, math.nan)
            for name, each in zip(unused, others, strict=True)
        }
    return gradients


def _completed(
    entry: _Observed,
    gradients: dict[str, Tensor | None],
    trained: dict[str, nn.Parameter],
    predicted: dict[str, float | None],
) -> DiagnosedLayer:
    row = entry.row
    size = None
    found = None if entry.weight is None else gradients.get(entry.weight)
    if found is not None and entry.weight is not None:
        weight = trained[entry.weight].detach()
        size = found.double().norm().item() * weight.double().norm().item()
    share = row.share
    if entry.unbiased_square is not None and not entry.is_followed:
        share = _share(row.signal, entry.unbiased_square)
    return replace(
        row,
        share=share,
        gradient=sum(entry.gradients) if entry.gradients else None,
        weight_gradient=size,
        predicted=None if entry.weight is None else predicted.get(entry.weight),
        is_gate=entry.is_gate and row.kind == "activation",
        is_symmetric=entry.is_followed and entry.layer is not None and has_equal_rows(entry.layer),
    )


def _predicted(calls: Sequence[Call], weights: Weights) -> dict[str, float | None]:
    """The variance after each weight, if it had its size but no further structure."""
    try:
        plans = Planner(calls, weights, "lsuv", "fan_in").run()
    except (ValueError, ArithmeticError, RuntimeError):  # moments that aren't finite
        return {}
    return {plan.name: plan.predicted for plan in plans}


def _share(signal: float, square: float) -> float:
    return signal / square if square > 0 else 0.0


def _unbiased_square(output: Tensor, layer: Layer) -> float | None:
    axis = output.dim() - len(layer.kernel) - 1
    bias = layer.bias
    if bias is None or bias.dim() != 1 or axis < 0 or len(bias) != output.size(axis):
        return None
    shape = [-1 if index == axis else 1 for index in range(output.dim())]
    return mean_square(output.detach() - bias.detach().reshape(shape))


def _kind(call: Call, layer: Layer | None, is_activation: bool) -> str | None:
    if layer is not None:
        return "layer"
    if is_activation:
        return "activation"
    if call.kind in NORM_KINDS:
        return "norm"
    return None


def _type(call: Call) -> str:
    target = call.target
    return type(target).__name__ if isinstance(target, nn.Module) else name_of(target)


def _name(call: Call, weight: str | None, last: str) -> str:
    if isinstance(call.target, nn.Module):
        return call.name
    if weight is not None:
        return weight.partition(".parametrizations.")[0].removesuffix(".weight")
    return f"{call.name} after {last}"
