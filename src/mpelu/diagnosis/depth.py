"""Where the signal or the gradient is lost, or explodes, on its way through the layers."""

from __future__ import annotations

from collections.abc import Callable

from mpelu.diagnosis.rows import DiagnosedLayer, Finding, Measurement, found_at, number
from mpelu.graph import layer_of

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


def detached_finding(measured: Measurement) -> Finding | None:
    """Whether something keeps the gradient from weights that the output depends on."""
    flow = measured.flow
    lost = sorted({index for index in measured.cut.values() if index in measured.at})
    lost = [index for index in lost if measured.at[index].kind == "layer"]
    if lost:
        cut = next((each for each in flow.cuts() if each >= lost[-1]), lost[-1])
        cause = "it runs" if cut == lost[-1] else f"`{flow.calls[cut].name}` behind it stops it"
        if cut == lost[-1]:
            cause += " without gradients, as under torch.no_grad"
        more = f", nor that of {len(lost) - 1} more," if len(lost) > 1 else ""
        return found_at(
            measured.at[lost[-1]],
            "detached",
            f"no gradient reaches its weight{more} although the output depends on it: {cause}",
        )
    return _bypassed(measured)


def _bypassed(measured: Measurement) -> Finding | None:
    """A layer that learns from values whose layers don't learn from it.

    A problem only if the same values also go around it: a second head may be detached on purpose.
    """
    flow = measured.flow
    cuts = flow.cuts()
    for index, row in measured.at.items():
        layer = layer_of(flow.calls[index])
        if layer is None or not row.weight_gradient or flow.has_gradient(layer.fed):
            continue
        cut = max(flow.before([layer.fed]).intersection(cuts), default=None)
        if cut is not None and flow.has_gradient(index):
            return found_at(
                row,
                "detached" if flow.meets_itself(cut) else "remark",
                f"`{flow.calls[cut].name}` before it stops the gradient, so that the layers there "
                "learn nothing from it",
            )
    return None


def signal_finding(measured: Measurement) -> Finding | None:
    """Whether the signal is lost by the last layer, or has exploded, and from where on."""
    layers = measured.layers
    if not layers:
        return None

    def size(row: DiagnosedLayer) -> float:
        return row.signal / min(1.0, measured.inputs.signal or 1.0)

    def size_or_share(row: DiagnosedLayer) -> float:
        return min(size(row), row.share)

    for measure in (size, size_or_share):
        if measure(layers[-1]) < LOST:
            return _lost(measured, measure)
    return _exploded(layers, max(1.0, measured.inputs.signal))


def _lost(measured: Measurement, size: Callable[[DiagnosedLayer], float]) -> Finding:
    layers = measured.layers
    last = layers[-1]
    start = len(layers) - 1
    while start > 0 and size(layers[start - 1]) < FADING:
        start -= 1
    first = layers[start]
    dead = [row for row in measured.rows if row.dead == 1.0 and row.position <= first.position]
    if dead:
        return found_at(
            dead[0],
            "dead",
            "the whole activation is dead: every sample gives the same output and gradient zero, "
            "so no layer before it learns",
        )
    if first.signal == 0:
        text = "its output is the same for every sample"
    elif size(first) == first.share and first.variance > 100 * first.signal:
        text = (
            f"the signal's variance, {number(first.signal)} between samples, falls to "
            f"{number(first.share)} of the values' mean square here"
        )
        text += _then(first, last, f"to {number(last.share)} by the last layer")
    else:
        text = f"the signal's variance falls to {number(first.signal)} here"
        text += _then(first, last, f"to {number(last.signal)} by the last layer")
    return found_at(first, "signal dies", text)


def _then(first: DiagnosedLayer, last: DiagnosedLayer, words: str) -> str:
    return "" if first is last else f" and {words}"


def _exploded(layers: list[DiagnosedLayer], scale: float) -> Finding | None:
    last = layers[-1]
    overflowing = next((row for row in layers if row.signal > OVERFLOWING * scale), None)
    has_grown = len(layers) > 1 and max(row.signal for row in layers[:-1]) > GROWING * scale
    if overflowing is None and not (last.signal > EXPLODED * scale and has_grown):
        return None
    first = most = overflowing or last
    if last.signal > EXPLODED * scale:
        start = len(layers) - 1
        while start > 0 and layers[start - 1].signal > GROWING * scale:
            start -= 1
        first, most = layers[start], last
    text = f"the signal's variance rises to {number(first.signal)} here"
    text += _then(first, most, f"to {number(most.signal)} by the last layer")
    return found_at(first, "signal explodes", text)


def gradient_finding(measured: Measurement) -> Finding | None:
    """Whether the gradient is lost on its way to the first layers, or explodes, and where."""
    rows = [row for row in measured.layers if row.weight_gradient is not None]
    without = [row for row in rows if row.gradient == 0 and row.weight_gradient == 0]
    if without:
        return found_at(
            without[-1],
            "gradient vanishes",
            "the gradient at its output is zero for every sample, so its weight doesn't learn",
        )
    if len(rows) < 3:
        return None
    sizes = [row.weight_gradient or 0.0 for row in rows]
    quarter = max(1, len(rows) // 4)
    first, last = max(sizes[:quarter]), max(sizes[-quarter:])
    if last == 0:
        return None
    if first < VANISHED * last:
        kind, verb = "gradient vanishes", "vanishes"
        end = next(
            index for index in reversed(range(len(rows))) if max(sizes[: index + 1]) < 1e-2 * last
        )
    elif min(sizes[:quarter]) > GRADIENT_EXPLODED * last:
        kind, verb = "gradient explodes", "explodes"
        end = next(index for index in reversed(range(len(rows))) if sizes[index] > 1e2 * last)
    else:
        return None
    text = (
        f"the gradient {verb} from here towards the input: the first weights matter "
        f"{number(first / last)} times as much to the loss as the last"
    )
    return found_at(rows[end], kind, text)
