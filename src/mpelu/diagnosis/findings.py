"""Judges a measurement: what is wrong with a model, the worst first.

Each function below says one thing. `findings_of` judges inputs, signal, gradient and units, also on
the copies on which initializations are tried. `findings_about` judges the model itself: its
parameters, its optimizer, and the parts that aren't watched.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import learnable_parameters
from mpelu.diagnosis.measure import InputScale, Measurement
from mpelu.diagnosis.report import DiagnosedLayer, Finding, number

LARGEST_INPUT = 1e6
"""Inputs are too large where their variance or mean square exceeds this."""
LARGEST_PLAIN = 1e3
"""Without a norm in the model, inputs are too large where their mean square exceeds this. The mean
square of bytes is 2e4."""
SMALLEST_INPUT = 1e-6
"""Inputs differ too little where their variance is below this."""
MOST_SPREAD = 300.0
"""Channels are on different scales where the standard deviation of one exceeds that of at least a
quarter of the channels by this factor."""

LOST = 1e-6
"""The signal is lost where its variance, or its share of the mean square, falls below this by the
last layer."""
FADING = 1e-4
"""A lost signal is reported at the first layer after which it stays below this."""
EXPLODED = 1e4
"""The signal has exploded where its variance, as a multiple of the input's, exceeds this in the
last layer after growing over several layers."""
GROWING = 1e2
"""An exploded signal is reported at the first layer after which it stays above this."""
OVERFLOWING = 1e10
"""The signal has exploded where any layer's variance exceeds this: half precision overflows."""
VANISHED = 1e-5
"""The gradient has vanished where the effect of the first weights on the loss, as a multiple of the
effect of the last, falls below this."""
GRADIENT_EXPLODED = 1e4
"""The gradient has exploded where this ratio exceeds this."""

MOST_DEAD = 0.75
"""A share of dead units from here on is a problem."""
SOME_DEAD = 0.25
"""A share of dead units from here on is worth a remark."""
CHANCE = 1000
"""Dead units are a problem only if as many die by chance at most once in this many networks."""
MOST_SATURATED = 0.8
"""A share of saturated units from here on is a problem."""
_NONLINEAR = ("softmax", "scaleddotproductattention", "mul", "maxpool", "amax", "bmm")
"""Parts of the names of operations that aren't linear, as in `Call.operation`."""

MOST_STEPS = 1e5
"""An activation's parameter hardly moves if a change by a tenth takes more steps than this."""
DECAY_STEPS = 10_000
"""Steps over which decoupled weight decay is counted."""
LEAST_LEFT = 0.8
"""Decoupled weight decay is a problem where it leaves less than this share of a parameter."""
_FEWEST = 256
"""Smallest number of values that shows how a weight is distributed."""
_SHRINKING = ("scale", "rate", "shape")
"""Kinds of activations' parameters that should stay away from zero, such as alpha and beta."""
_DECOUPLED = (torch.optim.AdamW, torch.optim.Adafactor)
_UNSEEN = (torch.jit.ScriptModule, nn.RNNBase, nn.RNNCellBase, nn.Bilinear)
"""Classes whose inner calls aren't watched, and that aren't layers of one weight."""


def findings_of(measured: Measurement) -> list[Finding]:
    """Returns what inputs, signal, gradient and units tell, the worst first."""
    inputs, broken = _inputs(measured), _non_finite(measured)
    if broken is not None:  # nothing behind it can be measured
        return [each for each in (inputs, broken) if each is not None]
    signal = _signal(measured)
    is_dead = signal is not None and signal.kind == "dead"
    found = [
        inputs,
        _detached(measured) or _bypassed(measured),
        *measured.mistakes,
        signal,
        None if is_dead else _dead(measured),
        _gradient(measured),
        _symmetric(measured),
        _saturated(measured),
        _without_activation(measured) or _on_a_line(measured),
    ]
    return worst_first(each for each in found if each is not None)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Sorts problems before remarks, and keeps their order otherwise."""
    return sorted(findings, key=lambda each: not each.is_problem)


def _at(row: DiagnosedLayer, kind: str, text: str) -> Finding:
    text = f"layer {row.position}, `{row.name}`: {text}"
    return Finding(kind=kind, text=text, layer=row.name, position=row.position)


def _more(count: int) -> str:
    return f" (and {count} more like it)" if count else ""


def _inputs(measured: Measurement) -> Finding | None:
    """Finds inputs on an unusual scale that the model doesn't change before its first layer."""
    given, fed = measured.inputs, measured.fed or measured.inputs
    has_norm = any(row.kind == "norm" for row in measured.rows.values())
    if _is_large(given) and _is_large(fed):
        what = f"the inputs are too large: their mean square is {number(given.square)}"
    elif given.signal < SMALLEST_INPUT and fed.signal < SMALLEST_INPUT:
        what = f"the inputs differ too little: their variance is {number(given.signal)}"
    elif fed.spread > MOST_SPREAD:
        what = (
            "the inputs' channels are on different scales: one varies "
            f"{number(fed.spread)} times as much as others"
        )
    elif given.square > LARGEST_PLAIN < fed.square and not has_norm:
        what = (
            "the inputs are large for a model without a norm: their mean square is "
            f"{number(given.square)}"
        )
    else:
        return None
    return Finding(kind="inputs", text=f"{what}; standardize them to mean 0 and variance 1")


def _is_large(scale: InputScale) -> bool:
    return max(scale.signal, scale.square) > LARGEST_INPUT


def _non_finite(measured: Measurement) -> Finding | None:
    rows = [*measured.rows.values()]
    for row in rows:
        if not (math.isfinite(row.variance) and math.isfinite(row.mean)):
            return _at(row, "non-finite", "its outputs are NaN or infinite")
    if not math.isfinite(measured.loss):
        text = (
            f"the loss is {'NaN' if math.isnan(measured.loss) else 'infinite'}, although the "
            "outputs of all layers are finite: look at the targets, and at what comes after the "
            "last layer"
        )
        return Finding(kind="non-finite", text=text)
    for row in reversed(rows):
        if row.gradient is not None and not math.isfinite(row.gradient):
            return _at(row, "non-finite", "the gradient at its output is NaN or infinite")
    return None


def _detached(measured: Measurement) -> Finding | None:
    """Finds layers that the output depends on although no gradient reaches their weight."""
    rows = measured.rows
    taking = sorted({*measured.cut.values()} & rows.keys())
    lost = [index for index in taking if rows[index].kind == "layer"]
    if not lost:
        return None
    last = lost[-1]
    stop = next((each for each in measured.stops if each >= last), last)
    if stop == last:
        cause = "it runs without gradients, as under torch.no_grad"
    else:
        cause = f"`{measured.calls[stop].name}` behind it stops it"
    more = f", nor that of {len(lost) - 1} more," if len(lost) > 1 else ""
    text = f"no gradient reaches its weight{more} although the output depends on it: {cause}"
    return _at(rows[last], "detached", text)


def _bypassed(measured: Measurement) -> Finding | None:
    """Finds a layer that learns from values whose layers don't learn from it.

    It is a problem only if the same values also bypass the stop: a second head may be detached on
    purpose.
    """
    found = measured.bypass
    if found is None:
        return None
    return _at(
        measured.rows[found.layer],
        "detached" if found.is_mistake else "remark",
        f"`{measured.calls[found.stop].name}` before it stops the gradient, so that the layers "
        "there learn nothing from it",
    )


def _signal(measured: Measurement) -> Finding | None:
    """Finds where the signal is lost or explodes."""
    layers, given = measured.layers, measured.inputs.signal
    if not layers:
        return None

    def size(row: DiagnosedLayer) -> float:
        return row.signal / min(1.0, given or 1.0)

    def size_or_share(row: DiagnosedLayer) -> float:
        return min(size(row), row.share)

    for measure in (size, size_or_share):
        if measure(layers[-1]) < LOST:
            return _lost(measured, measure)
    return _exploded(layers, max(1.0, given))


def _start(layers: Sequence[DiagnosedLayer], holds: Callable[[DiagnosedLayer], bool]) -> int:
    """Returns the index of the first layer after which a condition holds up to the last."""
    start = len(layers) - 1
    while start > 0 and holds(layers[start - 1]):
        start -= 1
    return start


def _lost(measured: Measurement, size: Callable[[DiagnosedLayer], float]) -> Finding:
    layers = measured.layers
    first, last = layers[_start(layers, lambda row: size(row) < FADING)], layers[-1]
    for row in measured.rows.values():
        if row.dead == 1.0 and row.position <= first.position:
            return _at(
                row,
                "dead",
                "the whole activation is dead: every sample gives the same output and gradient "
                "zero, so no layer before it learns",
            )
    if first.signal == 0:
        return _at(first, "signal dies", "its output is the same for every sample")
    if size(first) == first.share and first.variance > 100 * first.signal:
        end = number(last.share)
        text = (
            f"the signal's variance, {number(first.signal)} between samples, falls to "
            f"{number(first.share)} of the values' mean square here"
        )
    else:
        end, text = (
            number(last.signal),
            f"the signal's variance falls to {number(first.signal)} here",
        )
    return _at(first, "signal dies", text + _by_the_last(first is last, end))


def _by_the_last(is_last: bool, size: str) -> str:
    return "" if is_last else f" and to {size} by the last layer"


def _exploded(layers: Sequence[DiagnosedLayer], scale: float) -> Finding | None:
    last = layers[-1]
    first = most = next((row for row in layers if row.signal > OVERFLOWING * scale), None)
    has_grown = any(row.signal > GROWING * scale for row in layers[:-1])
    if last.signal > EXPLODED * scale and (has_grown or first is not None):
        first = layers[_start(layers, lambda row: row.signal > GROWING * scale)]
        most = last
    if first is None or most is None:
        return None
    text = f"the signal's variance rises to {number(first.signal)} here"
    text += _by_the_last(first is most, number(most.signal))
    return _at(first, "signal explodes", text)


def _gradient(measured: Measurement) -> Finding | None:
    """Finds where the gradient vanishes or explodes on its way to the first layers."""
    rows = [row for row in measured.layers if row.weight_gradient is not None]
    for row in reversed(rows):
        if row.gradient == 0 and row.weight_gradient == 0:
            return _at(
                row,
                "gradient vanishes",
                "the gradient at its output is zero for every sample, so its weight doesn't learn",
            )
    if len(rows) < 3:
        return None
    sizes = [row.weight_gradient or 0.0 for row in rows]
    quarter = max(1, len(rows) // 4)
    first, last = max(sizes[:quarter]), max(sizes[-quarter:])
    backwards = reversed(range(len(rows)))
    if last == 0:
        return None
    if first < VANISHED * last:
        verb = "vanishes"
        end = next(index for index in backwards if max(sizes[: index + 1]) < 1e-2 * last)
    elif min(sizes[:quarter]) > GRADIENT_EXPLODED * last:
        verb = "explodes"
        end = next(index for index in backwards if sizes[index] > 1e2 * last)
    else:
        return None
    return _at(
        rows[end],
        f"gradient {verb}",
        f"the gradient {verb} from here towards the input: the first weights matter "
        f"{number(first / last)} times as much to the loss as the last",
    )


def _symmetric(measured: Measurement) -> Finding | None:
    row = next((row for row in measured.rows.values() if row.is_symmetric), None)
    text = "all rows of its weight are equal, so its outputs differ by the bias at most and learn "
    return None if row is None else _at(row, "symmetric", f"{text}the same")


def _dead(measured: Measurement) -> Finding | None:
    dead = [(row.dead, row) for row in measured.rows.values() if row.dead is not None]
    worst = max((share for share, _ in dead), default=0.0)
    if worst < SOME_DEAD:
        return None
    alike = [(share, row) for share, row in dead if share >= min(worst, MOST_DEAD)]
    share, first = alike[0]
    what = "the whole activation is" if share == 1 else f"{share:.0%} of its units are"
    is_problem = worst >= MOST_DEAD and not all(_by_chance(row) for _, row in alike)
    return _at(
        first,
        "dead" if is_problem else "remark",
        f"{what} dead: every sample gives the same output and gradient zero{_more(len(alike) - 1)}",
    )


def _by_chance(row: DiagnosedLayer) -> bool:
    """Whether chance explains the number of dead units.

    Where samples hardly differ, as after global pooling, a unit is dead or linear with equal
    probability, by the sign of its input.
    """
    dead = round((row.units or 0) * (row.dead or 0.0))
    both = dead + round((row.units or 0) * (row.linear or 0.0))
    ways: int = sum(math.comb(both, each) for each in range(dead, both + 1))
    return ways * CHANCE > 1 << both


def _saturated(measured: Measurement) -> Finding | None:
    last = max((row.position for row in measured.layers), default=0)
    for row in measured.rows.values():
        is_flat = row.saturated is not None and row.saturated >= MOST_SATURATED
        if is_flat and row.position < last and not row.is_gate:
            return _at(
                row,
                "saturated",
                f"{row.saturated:.0%} of its units are saturated: their slope is below 0.01 for at "
                "least half of the samples",
            )
    return None


def _without_activation(measured: Measurement) -> Finding | None:
    """Finds layers with nothing nonlinear in between. A single pair may be intended."""
    pairs = measured.pairs
    if not pairs:
        return None
    first, second = (measured.rows[index] for index in pairs[0])
    return _at(
        first,
        "linear" if 2 * len(pairs) > measured.candidates - 1 else "remark",
        f"nothing nonlinear comes between it and `{second.name}`, so the two could be one "
        f"layer{_more(len(pairs) - 1)}",
    )


def _on_a_line(measured: Measurement) -> Finding | None:
    rows = [row for row in measured.rows.values() if row.kind == "activation"]
    if not rows or any((row.linear or 0.0) < 0.99 or row.is_gate for row in rows):
        return None
    names = {call.operation for call in measured.calls}
    if any(each in name for each in _NONLINEAR for name in names):
        return None
    text = "every activation works on a straight part of its curve, so the network is nearly linear"
    return _at(rows[0], "linear", text)


def findings_about(
    model: nn.Module,
    measured: Measurement,
    optimizer: torch.optim.Optimizer | None,
    has_loss: bool,
) -> Iterator[Finding]:
    """Yields what keeps parameters from learning, and which parts weren't measured as they are.

    Args:
        model: model to judge.
        measured: measurement of a copy of the model.
        optimizer: optimizer that trains the model, or None.
        has_loss: whether the gradients come from a real loss, so that their size counts.
    """
    parameters, gradients = dict(model.named_parameters()), measured.parameters
    yield from _frozen(parameters)
    unused = [name for name, each in gradients.items() if each is None and name not in measured.cut]
    if unused:
        yield _remark(f"no output depends on {_names(unused)}, so no gradient arrives there")
    learned = {each.name: each.kind for each in learnable_parameters(model)}
    still = [
        name
        for name, each in gradients.items()
        if each is not None and (each.dim() > 1 or name in learned) and not each.any()
    ]
    yield from _stuck(still, "have gradient zero everywhere, so they don't learn")
    if optimizer is not None:
        yield from _optimized(parameters, gradients, learned, optimizer, has_loss)
    unseen: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{each}.") for each in unseen)
        if isinstance(module, _UNSEEN) and not is_inside and [*module.parameters()]:
            unseen[name] = module
    if unseen:
        parts = _listed([f"`{name}` ({class_name(each)})" for name, each in unseen.items()])
        yield _remark(f"{parts} {'was' if len(unseen) == 1 else 'were'} not looked into")
    if measured.opened:
        count = len(measured.opened)
        start, get = ("starts", "gets") if count == 1 else (f"and {count - 1} more start", "get")
        yield _remark(
            f"`{measured.opened[0]}` {start} at zero, as is common, and {get} a gradient; it was "
            "measured with small values instead"
        )


def class_name(module: nn.Module) -> str:
    """Returns the name of a module's class, also for a scripted or traced module."""
    return str(getattr(module, "original_name", type(module).__name__))


def _remark(text: str) -> Finding:
    return Finding(kind="remark", text=text)


def _stuck(names: Sequence[str], text: str) -> Iterator[Finding]:
    """Yields a finding about parameters, if there are any."""
    if names:
        yield Finding(kind="parameters", text=f"{_names(names)} {text}", layer=names[0])


def _names(names: Sequence[str]) -> str:
    return _listed([f"`{name}`" for name in names])


def _listed(texts: Sequence[str]) -> str:
    """Lists the first three, and says how many more there are."""
    shown = ", ".join(texts[:3])
    return f"{shown} and {len(texts) - 3} more" if len(texts) > 3 else shown


def _frozen(parameters: Mapping[str, nn.Parameter]) -> Iterator[Finding]:
    frozen = {name: each for name, each in parameters.items() if not each.requires_grad}
    untrained = [name for name, each in frozen.items() if _is_uniform(each)]
    if not frozen:
        return
    if len(frozen) == len(parameters):
        text = (
            "no parameter requires gradients, so nothing learns; model.requires_grad_(True) "
            "changes that"
        )
        yield Finding(kind="parameters", text=text)
    elif untrained:
        text = (
            f"requires_grad is False for {_names(untrained)}, where the values are still the "
            "random ones that a layer starts with"
        )
        yield Finding(kind="parameters", text=text, layer=untrained[0])
    else:
        count, total = (sum(e.numel() for e in each.values()) for each in (frozen, parameters))
        yield _remark(
            f"requires_grad is False for {_names([*frozen])}: {count / total:.0%} of all values "
            "aren't trained"
        )


def _is_uniform(values: Tensor) -> bool:
    """Whether the values are uniformly distributed, as in torch's new layers and never in trained
    ones: the fourth moment is 1.8 times the squared second moment. For a Gaussian it is 3 times."""
    if values.dim() < 2 or values.numel() < _FEWEST or not values.is_floating_point():
        return False
    values = values.detach().double()
    values = values - values.mean()
    ratio = (values.pow(4).mean() / values.square().mean().square()).item()
    return abs(ratio - 1.8) < 0.1


def _optimized(
    parameters: Mapping[str, nn.Parameter],
    gradients: Mapping[str, Tensor | None],
    learned: Mapping[str, str],
    optimizer: torch.optim.Optimizer,
    has_loss: bool,
) -> Iterator[Finding]:
    of_tensor = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    groups = {
        name: of_tensor.get(id(each)) for name, each in parameters.items() if each.requires_grad
    }
    missing = [name for name, group in groups.items() if group is None]
    yield from _stuck(missing, "aren't in the optimizer, so they don't learn")
    unmoved = [name for name, group in groups.items() if group is not None and not _rate(group)]
    yield from _stuck(unmoved, "have learning rate 0, so they don't learn")
    # SGD takes steps in proportion to gradients; Adam doesn't.
    is_plain = isinstance(optimizer, torch.optim.SGD)
    slow, decayed, left = [], [], {}
    for name, group in groups.items():
        gradient = gradients.get(name)
        if name not in learned or gradient is None or group is None or not _rate(group):
            continue
        value, size = _size(parameters[name]), _size(gradient)
        step, decay = _rate(group), float(group.get("weight_decay", 0.0))
        if is_plain:
            step = step * (size if has_loss else 1.0) / (1 - group.get("momentum", 0.0))
        if step == 0 or 0.1 * (value or 1.0) / step > MOST_STEPS:
            slow.append(name)
        # Each step takes lr * weight_decay of the value away, whatever the gradient.
        if group.get("decoupled_weight_decay", isinstance(optimizer, _DECOUPLED)):
            if learned[name] in _SHRINKING:
                left[name] = max(0.0, 1 - _rate(group) * decay) ** DECAY_STEPS if value else 1.0
        elif has_loss and is_plain and decay * value > size:
            decayed.append(name)
    yield from _stuck(
        slow,
        "hardly move: with this learning rate, a change by a tenth takes more than "
        f"{MOST_STEPS:,.0f} steps; mpelu.param_groups gives them a rate of their own",
    )
    shrunk = [name for name, each in left.items() if each < LEAST_LEFT]
    if shrunk:
        kind = type(optimizer).__name__
        own = f"torch.optim.{kind}" if type(optimizer).__module__.startswith("torch.") else kind
        text = (
            f"weight decay multiplies {_names(shrunk)} by {number(min(left.values()))} in "
            f"{DECAY_STEPS:,} steps where the loss doesn't push back, however small the gradient; "
            f"mpelu.param_groups(model, lr=..., weight_decay=..., optimizer={own}) leaves them out"
        )
        yield Finding(kind="parameters", text=text, layer=shrunk[0])
    yield from _stuck(
        decayed,
        "are pulled to 0 by weight decay more than the loss moves them; "
        "mpelu.param_groups(..., decay_mult=0) leaves it out",
    )


def _rate(group: Mapping[str, Any]) -> float:
    """Returns the learning rate, or the initial one of a schedule if that is larger."""
    return max(float(group["lr"]), float(group.get("initial_lr", 0.0)))


def _size(values: Tensor) -> float:
    """Returns the root of the mean square."""
    return values.detach().double().square().mean().sqrt().item()
