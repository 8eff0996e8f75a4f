"""Measures a forward and a backward pass: a row for each layer, norm and activation."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakTensorKeyDictionary

from mpelu.diagnosis.flow import CHECKS, Bypass, Flow, has_equal_rows, mistake_in
from mpelu.diagnosis.quantities import (
    Moments,
    UnitShares,
    is_measurable,
    mean_square,
    units_of_call,
)
from mpelu.diagnosis.report import DiagnosedLayer, Finding
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
    reason,
    record,
    tensors_in,
)
from mpelu.init import predict

Loss = Callable[..., Tensor]

_OPENED_STD, _ROUNDS = 0.02, 4


class DiagnosisError(ValueError):
    """The reason why a model can't be diagnosed, as a whole message."""


@dataclass(frozen=True, kw_only=True, slots=True)
class InputScale:
    """Scale of a batch of inputs."""

    signal: float
    """Variance between samples; 0 if no input differs, 1 if only tokens do."""
    square: float = 1.0
    """Mean square; 1 for tokens."""
    spread: float = 1.0
    """Standard deviation of the channel that varies most, divided by the lower quartile of the
    standard deviations. 1 if it isn't known."""


class Batch:
    """The inputs, targets and loss to measure a model with.

    Args:
        inputs: inputs with at least two samples.
        targets: targets of the loss, or None.
        loss: function from the output, and the targets if given, to a scalar. The default is cross
            entropy for integer targets and the mean squared error for floating-point targets;
            without targets, a random direction of the output.
    """

    def __init__(self, inputs: Inputs, targets: Any, loss: Loss | None) -> None:
        self.inputs, self.targets, self.loss = inputs, targets, loss
        tensors = tensors_in(arguments(inputs))
        self.size = next((len(each) for each in tensors if each.dim() > 0), 1)
        """Size of the first dimension."""
        self.scale = _scale_of_inputs(tensors, self.size)
        self.shapes = {each.shape for each in tensors}
        self.has_loss = targets is not None or loss is not None
        """Whether gradients come from a real loss, so that their size counts."""


def _scale_of_inputs(tensors: Sequence[Tensor], batch: int) -> InputScale:
    """Returns the scale of the first input that differs between samples. Others may be masks."""
    has_tokens = False
    for each in tensors:
        if is_measurable(each):
            scale = _scale_of(each, batch)
            if scale.signal > 0:
                return scale
        elif each.dim() > 0 and each.numel() > 0:
            first = each[:1] if batch > 1 else each.flatten()[0]
            has_tokens = has_tokens or bool((each != first).any())
    return InputScale(signal=float(has_tokens))


def _scale_of(values: Tensor, batch: int) -> InputScale:
    found = Moments.of(values, batch)
    return InputScale(signal=found.signal, square=found.variance + found.mean**2)


def _spread_of(values: Tensor, axis: int) -> float:
    """Returns the ratio in `InputScale.spread`. Constant channels don't count."""
    channels = values.detach().double().movedim(axis, 0).flatten(1)
    deviations = channels.std(1, correction=0)
    varying = deviations[deviations > 0].sort().values
    return (varying[-1] / varying[len(varying) // 4]).item() if len(varying) > 3 else 1.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What a forward and a backward pass tell about a model."""

    calls: Sequence[Call]
    rows: Mapping[int, DiagnosedLayer]
    """By the index of the call, in order."""
    layers: Sequence[DiagnosedLayer]
    """The rows of layers with a weight."""
    inputs: InputScale
    fed: InputScale | None
    """Scale of the first layer's input: the model's inputs, or what it computes from them."""
    loss: float
    mistakes: Sequence[Finding]
    """Mistakes in the arguments of calls and of the loss."""
    parameters: Mapping[str, Tensor | None]
    """Gradient of each trained parameter; None if no output depends on it."""
    cut: Mapping[str, int]
    """Trained parameters that no gradient reaches although the output depends on them, and the
    index of the call that takes each."""
    stops: Sequence[int]
    """Indices of the calls that stop the gradient."""
    bypass: Bypass | None
    """The first layer that learns from values whose layers don't learn from it."""
    pairs: Sequence[tuple[int, int]]
    """Indices of pairs of layers that could be one layer."""
    candidates: int
    """Number of layers that could be in such a pair."""
    opened: Sequence[str] = ()
    """Weights that are zero, and that were measured with small random values instead."""


def measure(probe: nn.Module, batch: Batch) -> Measurement:
    """Measures a copy of a model. Overwrites zero-initialized weights of the copy.

    Trained batch norm uses the statistics of the batch, and dropout is off. By design, a head or a
    branch's last norm or scale may start at zero: it has a gradient, while the layers before it
    have none until it has moved. Such weights get small random values before the final measurement.

    Args:
        probe: copy of a model, not wrapped.
        batch: inputs, targets and loss.
    """
    # Takes a pass of its own, because a later call may tell where a tensor's channels are. The pass
    # builds a graph, so that its calls are the same as in `_measure`.
    channels = find_channels(record(probe, batch.inputs, finish=lambda _: None)[0])
    opened: list[str] = []
    measured = _measure(probe, batch, channels)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_ROUNDS):
        parameters = dict(probe.named_parameters())
        closed = [
            name
            for name, gradient in measured.parameters.items()
            if gradient is not None
            and not name.endswith("bias")
            and not parameters[name].any()
            and gradient.any()
        ]
        if not closed:
            break
        opened += closed
        with torch.no_grad():
            for name in closed:
                small = torch.randn(parameters[name].shape, generator=generator) * _OPENED_STD
                parameters[name].copy_(small)
        measured = _measure(probe, batch, channels)
    return replace(measured, opened=opened)


def _measure(model: nn.Module, batch: Batch, channels: Sequence[Channels | None]) -> Measurement:
    weights = Weights(model)
    observer = _Observer(weights, batch, channels)
    ends: set[int] = set()
    losses: list[float] = []
    trained: dict[str, nn.Parameter] = {}
    gradients: dict[str, Tensor | None] = {}

    def finish(output: Any) -> None:
        trained.update((n, each) for n, each in model.named_parameters() if each.requires_grad)
        tensors = tensors_in(output)
        ends.update(observer.makers[each] for each in tensors if each in observer.makers)
        outputs = [each for each in tensors if each.is_floating_point() and each.requires_grad]
        if not any(len(each) == batch.size for each in outputs if each.dim()):
            observer.mistakes = [each for each in observer.mistakes if each.kind != "softmax"]
        value = _loss_of(output, outputs, batch, observer.mistakes)
        losses.append(value.item())
        gradients.update(_gradients(value, outputs, trained))

    calls, weights = record(
        model, batch.inputs, observer.before, observer.after, weights=weights, finish=finish
    )
    predicted = _predicted(calls, weights)
    index = {id(call): each for each, call in enumerate(calls)}
    flow = Flow(
        calls,
        {index[each]: layer for each, layer in observer.layers.items()},
        {index[each]: graded for each, graded in observer.graded.items()},
    )
    rows = {}
    for at, entry in ((index[each], entry) for each, entry in observer.observed.items()):
        layer, weight, is_followed = flow.layers.get(at), entry.weight, at in flow.followed
        gradient = None if weight is None else gradients.get(weight)
        rows[at] = replace(
            entry.row,
            share=entry.row.share if is_followed else entry.share,
            gradient=sum(entry.gradients) if entry.gradients else None,
            weight_gradient=None
            if gradient is None or weight is None
            else _norm(gradient) * _norm(trained[weight]),
            predicted=None if weight is None else predicted.get(weight),
            is_gate=entry.row.kind == "activation" and at in flow.gates,
            is_symmetric=is_followed and layer is not None and has_equal_rows(layer),
        )
    pairs, candidates = flow.layers_in_a_row()
    lost = {name for name, each in gradients.items() if each is None}
    return Measurement(
        calls=calls,
        rows=rows,
        layers=[row for row in rows.values() if row.kind == "layer"],
        inputs=batch.scale,
        fed=observer.fed,
        loss=losses[0],
        mistakes=observer.mistakes,
        parameters=gradients,
        cut=flow.cut_off(lost, {index[each] for each in ends}, weights),
        stops=flow.stops(),
        bypass=flow.bypass(each for each, row in rows.items() if row.weight_gradient),
        pairs=pairs,
        candidates=candidates,
    )


@dataclass(slots=True)
class _Observed:
    """What the forward pass tells about a call."""

    row: DiagnosedLayer
    weight: str | None
    share: float
    """Share of the row, leaving out the bias."""
    gradients: list[float] = field(default_factory=list)


class _Observer:
    """Measures every call of a pass as it happens. Its dictionaries are keyed by id(call)."""

    def __init__(self, weights: Weights, batch: Batch, channels: Sequence[Channels | None]) -> None:
        self.observed: dict[int, _Observed] = {}
        self.layers: dict[int, Layer] = {}
        self.graded: dict[int, bool] = {}
        """Whether the output of a call has a gradient."""
        self.makers = WeakTensorKeyDictionary()
        """The id of the last call that returned a tensor, by tensor."""
        self.fed: InputScale | None = None
        self.mistakes: list[Finding] = []
        self._weights, self._batch, self._channels = weights, batch, channels
        self._units: UnitShares | None = None
        self._layer: Layer | None = None
        self._count, self._last = 0, "the input"

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunction():  # measuring isn't watched: that is slow
            self._units = units_of_call(call, args, kwargs, self._channels)
            self._note(call, args, kwargs)

    def _note(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes the layer of a call, what the first layer takes, and mistakes in arguments."""
        self._layer = layer_of(call)
        if self.fed is None and self._units is None and self._layer is not None:
            self.fed = self._scale_of_data(tensors_in((args, kwargs)), self._layer)
        if call.operation in CHECKS:
            name, called = self._name(call, None), replace(call, args=args, kwargs=kwargs)
            mistake = mistake_in(called, f"`{name}`", self._batch.size)
            if mistake is not None:
                self.mistakes.append(replace(mistake, layer=name, position=self._count))

    def _scale_of_data(self, tensors: Sequence[Tensor], layer: Layer) -> InputScale | None:
        """Returns the scale of the first tensor that isn't a parameter."""
        unnamed = [each for each in tensors if self._weights.name(each) is None]
        data = next((each for each in unnamed if is_measurable(each)), None)
        if data is None:
            return None
        scale = _scale_of(data, self._batch.size)
        axis = data.dim() - len(layer.kernel) - 1
        # Some channels of computed inputs, such as sines of a time, may hardly vary.
        is_input = axis > 0 and data.shape in self._batch.shapes
        return replace(scale, spread=_spread_of(data, axis)) if is_input else scale

    def after(self, call: Call, output: Tensor, run: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            self._observe(call, output)
        return output

    def _observe(self, call: Call, output: Tensor) -> None:
        if output.is_floating_point() or output.is_complex():
            self.graded[id(call)] = output.requires_grad
        self.makers[output] = id(call)
        layer = self._layer
        if layer is not None:
            self.layers[id(call)] = layer
            kind = "layer"
        elif self._units is not None:
            kind = "activation"
        elif call.kind in NORM_KINDS:
            kind = "norm"
        else:
            return
        weight = None if layer is None else self._weights.name(layer.weight)
        name = self._name(call, weight)
        if not is_measurable(output):
            return
        if kind == "layer":
            self._count, self._last = self._count + 1, name
        found = Moments.of(output, self._batch.size)
        square = found.variance + found.mean**2
        is_module = isinstance(call.target, nn.Module)
        row = DiagnosedLayer(
            position=self._count,
            name=name,
            kind=kind,
            type=type(call.target).__name__ if is_module else call.name,
            mean=found.mean,
            variance=found.variance,
            signal=found.signal,
            share=_share(found.signal, square),
            **({} if self._units is None else asdict(self._units)),
        )
        if layer is not None:
            square = _unbiased_square(output, layer, square)
        entry = _Observed(row, weight, _share(found.signal, square))
        self.observed[id(call)] = entry
        if output.requires_grad:
            output.register_hook(lambda grad: entry.gradients.append(mean_square(grad)))

    def _name(self, call: Call, weight: str | None) -> str:
        if isinstance(call.target, nn.Module):
            return call.name
        if weight is not None:
            return weight.partition(".parametrizations.")[0].removesuffix(".weight")
        return f"{call.name} after {self._last}"


def _share(signal: float, square: float) -> float:
    return signal / square if square > 0 else 0.0


def _unbiased_square(output: Tensor, layer: Layer, square: float) -> float:
    """Returns the mean square of a layer's output without its bias, given the one with it."""
    axis, bias = output.dim() - len(layer.kernel) - 1, layer.bias
    if bias is None or bias.dim() != 1 or axis < 0 or len(bias) != output.size(axis):
        return square
    shape = [-1 if index == axis else 1 for index in range(output.dim())]
    return mean_square(output.detach() - bias.detach().reshape(shape))


def _norm(values: Tensor) -> float:
    return float(values.detach().double().norm())


class _LossWatcher(TorchFunctionMode):
    """Checks the arguments of the functions that a loss calls."""

    def __init__(self, batch: int, mistakes: list[Finding]) -> None:
        super().__init__()
        self._batch, self._mistakes = batch, mistakes

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        call = Call(name_of(func), func, args, kwargs or {})
        if call.operation in CHECKS:
            mistake = mistake_in(call, f"the loss, `{call.name}`", self._batch)
            if mistake is not None and mistake.kind == "loss":
                self._mistakes.append(mistake)
        return func(*args, **kwargs or {})


def _loss_of(
    output: Any, outputs: Sequence[Tensor], batch: Batch, mistakes: list[Finding]
) -> Tensor:
    """Returns the loss, or a random direction of the first output if the batch has no loss.

    Args:
        output: output of the model.
        outputs: tensors of the output that have a gradient.
        batch: targets and loss.
        mistakes: list to add mistakes in the loss's arguments to.
    """
    if not outputs:
        raise DiagnosisError("diagnose: expected an output that depends on trained parameters")
    if not batch.has_loss:
        return _random_direction(outputs[:1])
    targets, loss = batch.targets, batch.loss
    try:
        with _LossWatcher(batch.size, mistakes):
            if loss is not None:
                value = loss(output) if targets is None else loss(output, targets)
            elif targets.is_floating_point():
                value = F.mse_loss(outputs[0], targets)
            else:
                value = F.cross_entropy(outputs[0], targets)
    except Exception as error:  # a loss may raise anything on an output of another kind
        raise DiagnosisError(
            f"diagnose: expected a loss that takes the output, got: {reason(error)}"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        came = f"shape {list(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise DiagnosisError(
            f"diagnose: expected a scalar loss that depends on the model, got {came}"
        )
    return value


def _random_direction(outputs: Sequence[Tensor]) -> Tensor:
    """Returns the sum of all output values with random weights, the same each time."""
    generator = torch.Generator().manual_seed(0)
    total = outputs[0].new_zeros((), dtype=torch.float32)
    for each in outputs:
        direction = torch.randn(each.shape, generator=generator).to(each.device)
        total = total + (each.float() * direction).sum() / math.sqrt(each.numel())
    return total


def _gradients(
    value: Tensor, outputs: Sequence[Tensor], trained: dict[str, nn.Parameter]
) -> dict[str, Tensor | None]:
    """Returns the gradient of each parameter; NaN if only outputs without a loss depend on it."""
    several = len(outputs) > 1
    found = torch.autograd.grad(
        value, list(trained.values()), allow_unused=True, retain_graph=several
    )
    gradients: dict[str, Tensor | None] = dict(zip(trained, found, strict=True))
    unused = [name for name, each in gradients.items() if each is None]
    if unused and several:
        others = torch.autograd.grad(
            _random_direction(outputs), [trained[name] for name in unused], allow_unused=True
        )
        gradients |= {
            name: None if each is None else torch.full_like(each, math.nan)
            for name, each in zip(unused, others, strict=True)
        }
    return gradients


def _predicted(calls: Sequence[Call], weights: Weights) -> dict[str, float | None]:
    """Returns the variance after each weight, as if its values were random with the same size."""
    try:
        return {p.name: p.predicted for p in predict(calls, weights).plans}
    except (ValueError, ArithmeticError, RuntimeError):  # moments that aren't finite
        return {}
