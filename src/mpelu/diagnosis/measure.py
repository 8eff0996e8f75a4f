"""One forward and backward pass of a model, and a row for each layer, norm and activation."""

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

from mpelu.diagnosis.flow import (
    Flow,
    followed_by_layers,
    gates_of,
    has_equal_rows,
    mistake_in,
    tensors_of,
)
from mpelu.diagnosis.report import DiagnosedLayer, Finding
from mpelu.diagnosis.units import UnitCounter, activation_of, is_measurable, unit_axis
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
    """Why a model can't be diagnosed, as a whole message."""


def moments(values: Tensor, batch: int) -> tuple[float, float, float]:
    """Mean, population variance, and variance between samples (the signal), in float64.

    Takes the mean first and then the squares of what is left. This is as exact as torch.var, and
    many times faster along the first dimension.

    Args:
        values: tensor of real numbers.
        batch: number of samples; 1 if they can't be told apart.
    """
    samples = _by_sample(values.detach().double(), batch)
    means = samples.mean(0)
    mean = means.mean()
    between = (means - mean).square_().mean()
    count = len(samples)
    if count == 1:
        return mean.item(), between.item(), between.item()
    inside = (samples - means).square_().mean()
    return mean.item(), (inside + between).item(), (inside * (count / (count - 1))).item()


def _by_sample(values: Tensor, batch: int) -> Tensor:
    """As [batch, values of a sample], or [1, values] where samples can't be told apart."""
    if batch > 1 and values.size(0) % batch == 0:  # also windows or heads folded into the batch
        return values.reshape(batch, -1)
    if batch > 1 and values.dim() > 1 and values.size(1) == batch:
        return values.transpose(0, 1).reshape(batch, -1)
    return values.reshape(1, -1)


def mean_square(values: Tensor) -> float:
    """Mean square in float64; the size of a gradient."""
    return values.detach().double().square().mean().item()


@dataclass(frozen=True, kw_only=True, slots=True)
class InputScale:
    """Scale of a batch of inputs."""

    signal: float
    """Variance between samples; 0 if no input differs, 1 if only tokens do."""
    square: float = 1.0
    """Mean square; 1 for tokens."""
    spread: float = 1.0
    """Standard deviation of the channel that varies most, divided by that of one that varies
    little: more than three quarters of the channels vary more. 1 if it isn't known."""


def batch_size(inputs: Inputs) -> int:
    """Size of the first dimension."""
    return next((len(each) for each in tensors_in(arguments(inputs)) if each.dim() > 0), 1)


def _input_scale(inputs: Inputs) -> InputScale:
    """Scale of the first input that differs between samples; others may be masks or constants."""
    batch = batch_size(inputs)
    has_tokens = False
    for each in tensors_in(arguments(inputs)):
        if is_measurable(each):
            scale = _scale_of(each, batch)
            if scale.signal > 0:
                return scale
        elif each.dim() > 0 and each.numel() > 0:
            first = each[:1] if batch > 1 else each.flatten()[0]
            has_tokens = has_tokens or bool((each != first).any())
    return InputScale(signal=float(has_tokens))


def _scale_of(values: Tensor, batch: int) -> InputScale:
    mean, variance, signal = moments(values, batch)
    return InputScale(signal=signal, square=variance + mean**2)


def _spread_of(values: Tensor, axis: int) -> float:
    """How much the standard deviations of channels differ; constant channels don't count."""
    channels = values.detach().double().movedim(axis, 0).flatten(1)
    deviations = channels.std(1, correction=0)
    varying = deviations[deviations > 0].sort().values
    return (varying[-1] / varying[len(varying) // 4]).item() if len(varying) > 3 else 1.0


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Everything that a pass tells about a model."""

    rows: Mapping[int, DiagnosedLayer]
    """By the index of their call, in order."""
    inputs: InputScale
    fed: InputScale | None
    """Scale of what the first layer takes: the inputs, or what the model makes of them."""
    loss: float
    flow: Flow
    cut: Mapping[str, int]
    """Trained parameters that no gradient reaches although the output depends on them, and the
    index of the call that takes each."""
    mistakes: Sequence[Finding]
    """What is wrong with the arguments of single calls, or of the loss."""
    parameters: Mapping[str, Tensor | None]
    """Gradient of each trained parameter; None if no output depends on it."""
    opened: Sequence[str] = ()
    """Weights that are zero, and were measured with small random values."""

    @property
    def layers(self) -> list[DiagnosedLayer]:
        """The rows of layers with a weight."""
        return [row for row in self.rows.values() if row.kind == "layer"]


def measure(probe: nn.Module, inputs: Inputs, targets: Any, loss: Loss | None) -> Measurement:
    """Measures a copy of a model, and opens its zero-initialized weights.

    Trained batch norm uses the statistics of the batch, and dropout is off. A head, a branch's last
    norm or its scale may start at zero, by design: it gets a gradient, and the layers before it get
    theirs from the second step on. Such weights get small random values before everything is
    measured.

    Args:
        probe: copy of a model, not wrapped.
        inputs: at least two samples.
        targets: targets of the loss, or None.
        loss: maps the output, and the targets if given, to a scalar. The default is cross entropy
            for integer targets and the mean squared error for floating-point targets. Without
            targets it is a random direction of the output.
    """
    # From a pass of its own, because only what takes a tensor may tell where its channels are. With
    # a graph, as in `_measure`.
    channels = find_channels(record(probe, inputs, finish=lambda _: None)[0])
    opened: list[str] = []
    measured = _measure(probe, inputs, targets, loss, channels)
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
        measured = _measure(probe, inputs, targets, loss, channels)
    return replace(measured, opened=opened)


def _measure(
    model: nn.Module,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    channels: Sequence[Channels | None],
) -> Measurement:
    weights = Weights(model)
    observer = _Observer(weights, inputs, channels)
    ends: set[int] = set()
    losses: list[float] = []
    trained: dict[str, nn.Parameter] = {}
    gradients: dict[str, Tensor | None] = {}

    def finish(output: Any) -> None:
        trained.update((n, each) for n, each in model.named_parameters() if each.requires_grad)
        tensors = tensors_in(output)
        ends.update(observer.makers[each] for each in tensors if each in observer.makers)
        outputs = [each for each in tensors if each.is_floating_point() and each.requires_grad]
        has_samples = any(len(each) == observer.batch for each in outputs if each.dim())
        with _LossWatcher(observer.batch) as watcher:
            value = _loss_of(output, outputs, targets, loss)
        kept = [each for each in observer.mistakes if has_samples or each.kind != "softmax"]
        observer.mistakes = [*kept, *watcher.mistakes]
        losses.append(value.item())
        gradients.update(_gradients(value, outputs, trained))

    calls, weights = record(
        model, inputs, observer.before, observer.after, weights=weights, finish=finish
    )
    predicted = _predicted(calls, weights)
    followed, gates = followed_by_layers(calls), gates_of(calls)
    rows = {}
    for index, call in enumerate(calls):
        entry = observer.observed.get(id(call))
        if entry is not None:
            row, is_followed = entry.row, id(call) in followed
            gradient = None if entry.weight is None else gradients.get(entry.weight)
            rows[index] = replace(
                row,
                share=row.share if is_followed else entry.share,
                gradient=sum(entry.gradients) if entry.gradients else None,
                weight_gradient=None
                if gradient is None or entry.weight is None
                else _norm(gradient) * _norm(trained[entry.weight]),
                predicted=None if entry.weight is None else predicted.get(entry.weight),
                is_gate=row.kind == "activation" and id(call) in gates,
                is_symmetric=is_followed
                and entry.layer is not None
                and has_equal_rows(entry.layer),
            )
    flow = Flow(calls, observer.graded)
    return Measurement(
        rows=rows,
        inputs=_input_scale(inputs),
        fed=observer.fed,
        loss=losses[0],
        flow=flow,
        cut=_cut_off(flow, ends, weights, gradients),
        mistakes=observer.mistakes,
        parameters=gradients,
    )


@dataclass(slots=True)
class _Observed:
    """What is known of a call before the backward pass."""

    row: DiagnosedLayer
    layer: Layer | None
    weight: str | None
    share: float
    """Of the row, without the bias."""
    gradients: list[float] = field(default_factory=list)


class _Observer:
    """Measures every call of a pass as it happens."""

    def __init__(
        self, weights: Weights, inputs: Inputs, channels: Sequence[Channels | None]
    ) -> None:
        self.batch = batch_size(inputs)
        self.observed: dict[int, _Observed] = {}
        """By the id of the call."""
        self.fed: InputScale | None = None
        self.graded: dict[int, bool] = {}
        """Whether the output of a call has a gradient, by the id of the call."""
        self.makers = WeakTensorKeyDictionary()
        """The id of the call that returned a tensor last."""
        self.mistakes: list[Finding] = []
        self._weights, self._channels = weights, channels
        self._shapes = {each.shape for each in tensors_in(arguments(inputs))}
        self._units: UnitCounter | None = None
        self._count, self._last = 0, "the input"

    def before(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        with torch._C.DisableTorchFunction():  # so that measuring isn't watched, which is slow
            self._units = None
            activation = activation_of(call, args, kwargs)
            if activation is not None:
                axis = unit_axis(call, activation.values.dim(), self._channels)
                self._units = UnitCounter(activation.function, axis, is_known=activation.is_known)
                self._units.add(activation.values)
            elif self.fed is None and (layer := layer_of(call)) is not None:
                self.fed = self._scale_of_data(tensors_in((args, kwargs)), layer)
            mistake = mistake_in(call.target, args, kwargs, self.batch)
            if mistake is not None:
                name = self._name(call, None)
                text = f"`{name}`: {mistake[1]}"
                self.mistakes.append(
                    Finding(kind=mistake[0], text=text, layer=name, position=self._count)
                )

    def _scale_of_data(self, tensors: Sequence[Tensor], layer: Layer) -> InputScale | None:
        """The scale of the first tensor that isn't a parameter."""
        data = [each for each in tensors if is_measurable(each) and not self._weights.name(each)]
        if not data:
            return None
        scale = _scale_of(data[0], self.batch)
        axis = data[0].dim() - len(layer.kernel) - 1
        # Of what a model has computed, such as sines of a time, some channels may hardly vary.
        is_input = axis > 0 and data[0].shape in self._shapes
        return replace(scale, spread=_spread_of(data[0], axis)) if is_input else scale

    def after(self, call: Call, output: Tensor, run: Any) -> Tensor:
        with torch._C.DisableTorchFunction():
            self._observe(call, output)
        return output

    def _observe(self, call: Call, output: Tensor) -> None:
        if output.is_floating_point() or output.is_complex():
            self.graded[id(call)] = output.requires_grad
        self.makers[output] = id(call)
        layer = layer_of(call)
        if layer is not None:
            kind = "layer"
        elif self._units is not None:
            kind = "activation"
        elif call.kind in NORM_KINDS:
            kind = "norm"
        else:
            return
        if not is_measurable(output):
            return
        weight = None if layer is None else self._weights.name(layer.weight)
        name = self._name(call, weight)
        if kind == "layer":
            self._count, self._last = self._count + 1, name
        mean, variance, signal = moments(output, self.batch)
        square = variance + mean**2
        is_module = isinstance(call.target, nn.Module)
        row = DiagnosedLayer(
            position=self._count,
            name=name,
            kind=kind,
            type=type(call.target).__name__ if is_module else name_of(call.target),
            mean=mean,
            variance=variance,
            signal=signal,
            share=_share(signal, square),
            **({} if self._units is None else asdict(self._units.shares())),
        )
        if layer is not None:
            square = _unbiased_square(output, layer, square)
        entry = _Observed(row, layer, weight, _share(signal, square))
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
    """Mean square of a layer's output without its bias, given the mean square with it."""
    axis, bias = output.dim() - len(layer.kernel) - 1, layer.bias
    if bias is None or bias.dim() != 1 or axis < 0 or len(bias) != output.size(axis):
        return square
    shape = [-1 if index == axis else 1 for index in range(output.dim())]
    return mean_square(output.detach() - bias.detach().reshape(shape))


def _norm(values: Tensor) -> float:
    return float(values.detach().double().norm())


class _LossWatcher(TorchFunctionMode):
    """Checks the arguments of a loss's functions."""

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


def _loss_of(output: Any, outputs: Sequence[Tensor], targets: Any, loss: Loss | None) -> Tensor:
    """The loss, or a random direction of the first output without targets and loss.

    Args:
        output: output of the model.
        outputs: its tensors that have a gradient.
        targets: as for `measure`.
        loss: as for `measure`.
    """
    if not outputs:
        raise DiagnosisError("diagnose: expected an output that depends on trained parameters")
    if targets is None and loss is None:
        return _random_direction(outputs[:1])
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


def _random_direction(outputs: Sequence[Tensor]) -> Tensor:
    """The sum of the outputs' values, with random weights that are always the same."""
    generator = torch.Generator().manual_seed(0)
    total = outputs[0].new_zeros((), dtype=torch.float32)
    for each in outputs:
        direction = torch.randn(each.shape, generator=generator).to(each.device)
        total = total + (each.float() * direction).sum() / math.sqrt(each.numel())
    return total


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
            _random_direction(outputs), [trained[name] for name in unused], allow_unused=True
        )
        gradients |= {
            name: None if each is None else torch.full_like(each, math.nan)
            for name, each in zip(unused, others, strict=True)
        }
    return gradients


def _predicted(calls: Sequence[Call], weights: Weights) -> dict[str, float | None]:
    """The variance after each weight, if it had its size but no further structure."""
    try:
        return {p.name: p.predicted for p in predict(calls, weights).plans}
    except (ValueError, ArithmeticError, RuntimeError):  # moments that aren't finite
        return {}


def _cut_off(
    flow: Flow, ends: set[int], weights: Weights, gradients: Mapping[str, Tensor | None]
) -> dict[str, int]:
    """The parameters that the output depends on, but that have no gradient."""
    lost = {name for name, each in gradients.items() if each is None}
    if not lost:
        return {}
    found: dict[str, int] = {}
    for index in sorted(flow.before(i for i, call in enumerate(flow.calls) if id(call) in ends)):
        names = {weights.name(each) for each in tensors_of(flow.calls[index], recurse=True)}
        found.update((name, index) for name in names if name in lost)
    return found
