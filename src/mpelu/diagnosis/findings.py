"""What is wrong with a model, from the rows of a measurement: the worst first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mpelu.diagnosis.measure import DiagnosedLayer, Measurement

LOST = 1e-6
"""The signal is lost where its variance, or its share of the mean square, falls below this by the
last layer."""
FADING = 1e-4
"""And it is lost from the first layer on after which it stays below this."""
EXPLODED = 1e4
"""The signal has exploded where its variance, as a multiple of the input's, exceeds this in the
last layer after growing over several layers."""
GROWING = 1e2
OVERFLOWING = 1e10
"""Variance that no layer may have: beyond it, half precision has overflowed."""
VANISHED = 1e-5
"""The gradient has vanished where a relative change of the first weights does this much less to
the loss than one of the last."""
GRADIENT_EXPLODED = 1e4
MOST_DEAD = 0.75
"""Share of dead units in an activation from which on it is a problem."""
SOME_DEAD = 0.25
MOST_SATURATED = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something to know about a model."""

    kind: str
    """"non-finite", "dead", "signal dies", "signal explodes", "gradient vanishes", "gradient
    explodes", "saturated", "linear", "parameters" or "remark"."""
    text: str
    """In a sentence, without a full stop."""
    layer: str = ""
    """Name of the layer it starts at."""
    position: int | None = None

    @property
    def is_problem(self) -> bool:
        return self.kind != "remark"


def findings_of(measured: Measurement) -> list[Finding]:
    """Everything that the signal, the gradient and the units tell, the worst first."""
    bad = _non_finite(measured)
    if bad is not None:  # nothing else can be measured behind it
        return [bad]
    found = [
        _signal(measured),
        _gradient(measured),
        *_dead(measured),
        _saturated(measured),
        _linear(measured),
    ]
    kept = [each for each in found if each is not None]
    if any(each.kind == "dead" for each in kept[:1]):
        kept = [each for each in kept if each.kind != "dead" or each is kept[0]]
    return sorted(kept, key=lambda each: not each.is_problem)


def placed(row: DiagnosedLayer) -> str:
    """Where a row is: "layer 12, `blocks.3.conv`"."""
    return f"layer {row.position}, `{row.name}`"


def number(value: float) -> str:
    """A number as it reads in a sentence.

    Example:
        >>> number(0.93), number(1234567.0), number(1.23e-9)
        ('0.93', '1.2e+06', '1.2e-09')
    """
    return f"{value:.2g}"


def signal_size(row: DiagnosedLayer, measured: Measurement) -> float:
    """The signal's variance relative to the input's, or its share of the mean square if smaller."""
    return min(row.signal / min(1.0, measured.input_signal or 1.0), row.share)


def _non_finite(measured: Measurement) -> Finding | None:
    for row in measured.rows:
        if not (math.isfinite(row.variance) and math.isfinite(row.mean)):
            return Finding(
                kind="non-finite",
                text=f"{placed(row)}: its outputs are NaN or infinite",
                layer=row.name,
                position=row.position,
            )
    for row in reversed(measured.rows):
        if row.gradient is not None and not math.isfinite(row.gradient):
            return Finding(
                kind="non-finite",
                text=f"{placed(row)}: the gradient at its output is NaN or infinite",
                layer=row.name,
                position=row.position,
            )
    return None


def _signal(measured: Measurement) -> Finding | None:
    layers = measured.layers
    if not layers:
        return None
    last = layers[-1]
    if signal_size(last, measured) < LOST:
        start = next(
            index
            for index in range(len(layers))
            if all(signal_size(each, measured) < FADING for each in layers[index:])
        )
        return _lost(measured, layers[start], last)
    scale = max(1.0, measured.input_signal)
    overflowing = next((row for row in layers if row.signal > OVERFLOWING * scale), None)
    has_grown = len(layers) > 1 and max(row.signal for row in layers[:-1]) > GROWING * scale
    if overflowing is None and not (last.signal > EXPLODED * scale and has_grown):
        return None
    if overflowing is None or last.signal > EXPLODED * scale:
        start = next(
            index
            for index in range(len(layers))
            if all(each.signal > GROWING * scale for each in layers[index:])
        )
        first, most = layers[start], last
    else:
        first = most = overflowing
    return Finding(
        kind="signal explodes",
        text=f"{placed(first)}: the signal's variance rises to {number(first.signal)} here"
        + (f" and to {number(most.signal)} by the last layer" if most is not first else ""),
        layer=first.name,
        position=first.position,
    )


def _lost(measured: Measurement, first: DiagnosedLayer, last: DiagnosedLayer) -> Finding:
    cause = next(
        (row for row in measured.rows if row.dead == 1.0 and row.position <= first.position), None
    )
    if cause is not None:
        return Finding(
            kind="dead",
            text=f"{placed(cause)}: the whole activation is dead: every sample gives the same "
            "output and gradient zero, so no layer before it learns",
            layer=cause.name,
            position=cause.position,
        )
    if first.signal == 0:
        text = f"{placed(first)}: its output is the same for every sample"
    elif signal_size(first, measured) == first.share and first.variance > 100 * first.signal:
        text = (
            f"{placed(first)}: the signal's variance, {number(first.signal)} between samples, "
            f"falls to {number(first.share)} of the values' mean square here"
        )
        text += _then(first, last, f"to {number(last.share)} by the last layer")
    else:
        text = f"{placed(first)}: the signal's variance falls to {number(first.signal)} here"
        text += _then(first, last, f"to {number(last.signal)} by the last layer")
    return Finding(kind="signal dies", text=text, layer=first.name, position=first.position)


def _then(first: DiagnosedLayer, last: DiagnosedLayer, words: str) -> str:
    return "" if first is last else f" and {words}"


def _gradient(measured: Measurement) -> Finding | None:
    rows = [row for row in measured.layers if row.weight_gradient is not None]
    if len(rows) < 3:
        return None
    sizes = [row.weight_gradient or 0.0 for row in rows]
    quarter = max(1, len(rows) // 4)
    first, last = max(sizes[:quarter]), max(sizes[-quarter:])
    if last == 0:
        return None
    if first < VANISHED * last:
        end = next(
            index for index in reversed(range(len(rows))) if max(sizes[: index + 1]) < 1e-2 * last
        )
        return Finding(
            kind="gradient vanishes",
            text=f"{placed(rows[end])}: the gradient vanishes from here towards the input: the "
            f"first weights matter {number(first / last)} times as much to the loss as the last",
            layer=rows[end].name,
            position=rows[end].position,
        )
    if min(sizes[:quarter]) > GRADIENT_EXPLODED * last:
        end = next(index for index in reversed(range(len(rows))) if sizes[index] > 1e2 * last)
        return Finding(
            kind="gradient explodes",
            text=f"{placed(rows[end])}: the gradient explodes from here towards the input: the "
            f"first weights matter {number(first / last)} times as much to the loss as the last",
            layer=rows[end].name,
            position=rows[end].position,
        )
    return None


def _dead(measured: Measurement) -> Iterator[Finding]:
    rows = [row for row in measured.rows if row.dead is not None and row.dead >= SOME_DEAD]
    if not rows:
        return
    worst = max(rows, key=lambda row: row.dead or 0.0)
    assert worst.dead is not None
    first = next(row for row in rows if (row.dead or 0.0) >= min(worst.dead, MOST_DEAD))
    what = "the whole activation is" if first.dead == 1 else f"{first.dead:.0%} of its units are"
    others = sum((row.dead or 0.0) >= min(worst.dead, MOST_DEAD) for row in rows) - 1
    more = f" (and {others} more like it)" if others else ""
    yield Finding(
        kind="dead" if worst.dead >= MOST_DEAD else "remark",
        text=f"{placed(first)}: {what} dead: every sample gives the same output and gradient "
        f"zero{more}",
        layer=first.name,
        position=first.position,
    )


def _saturated(measured: Measurement) -> Finding | None:
    for row in measured.rows:
        is_hidden = any(each.position > row.position for each in measured.layers)
        is_flat = row.saturated is not None and row.saturated >= MOST_SATURATED
        if is_flat and is_hidden and row.name not in measured.gates:
            return Finding(
                kind="saturated",
                text=f"{placed(row)}: {row.saturated:.0%} of its units are saturated: their slope "
                "is below 0.01 for at least half of the samples",
                layer=row.name,
                position=row.position,
            )
    return None


_NONLINEAR = ("softmax", "scaled_dot_product_attention", "mul", "max_pool", "amax", "bmm")


def _linear(measured: Measurement) -> Finding | None:
    rows = [row for row in measured.rows if row.linear is not None]
    if not rows or any((row.linear or 0.0) < 0.99 for row in rows):
        return None
    names = {
        type(call.target).__name__.lower() if call.name == "" else call.name.lower()
        for call in measured.calls
    }
    if measured.gates or any(each in name for each in _NONLINEAR for name in names):
        return None
    return Finding(
        kind="linear",
        text=f"{placed(rows[0])}: every activation works on a straight part of its curve, so the "
        "network is nearly linear",
        layer=rows[0].name,
        position=rows[0].position,
    )
