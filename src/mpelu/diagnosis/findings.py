"""What is wrong with a model, from the rows of a measurement: the worst first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mpelu.diagnosis.depth import detached_finding, gradient_finding, signal_finding
from mpelu.diagnosis.inputs import InputScale
from mpelu.diagnosis.rows import DiagnosedLayer, Finding, Measurement, found_at, number
from mpelu.diagnosis.structure import layers_in_a_row
from mpelu.graph import plain_name

LARGEST_INPUT = 1e6
"""Inputs are too large where their variance or mean square exceeds this."""
LARGEST_PLAIN = 1e3
"""And where their mean square exceeds this and the model has no norm; bytes have 2e4."""
MOST_SPREAD = 300.0
"""Standard deviation of a channel as a multiple of that of a quarter of the channels or more."""
SMALLEST_INPUT = 1e-6
"""And too small below this."""
MOST_DEAD = 0.75
"""Share of dead units in an activation from which on it is a problem."""
SOME_DEAD = 0.25
CHANCE = 1000
"""Dead units are a problem where so many would be dead by chance at most once in so many times."""
MOST_SATURATED = 0.8


def findings_of(measured: Measurement) -> list[Finding]:
    """Everything that the inputs, the signal, the gradient and the units tell, the worst first."""
    inputs, bad = _inputs(measured), _non_finite(measured)
    if bad is not None:  # nothing else can be measured behind it
        return [each for each in (inputs, bad) if each is not None]
    signal = signal_finding(measured)
    is_dead = signal is not None and signal.kind == "dead"
    found = [
        inputs,
        detached_finding(measured),
        *measured.mistakes,
        signal,
        *([] if is_dead else _dead(measured)),
        gradient_finding(measured),
        _symmetric(measured),
        _saturated(measured),
        _linear(measured),
    ]
    kept = [each for each in found if each is not None]
    return sorted(kept, key=lambda each: not each.is_problem)


def _inputs(measured: Measurement) -> Finding | None:
    """Inputs on a scale that no weights are made for, unless the model changes it first."""
    given, fed = measured.inputs, measured.fed or measured.inputs
    has_norm = any(row.kind == "norm" for row in measured.rows)
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
    for row in measured.rows:
        if not (math.isfinite(row.variance) and math.isfinite(row.mean)):
            return found_at(row, "non-finite", "its outputs are NaN or infinite")
    if not math.isfinite(measured.loss):
        return Finding(
            kind="non-finite",
            text=f"the loss is {'NaN' if math.isnan(measured.loss) else 'infinite'}, although the "
            "outputs of all layers are finite: look at the targets, and at what comes after the "
            "last layer",
        )
    for row in reversed(measured.rows):
        if row.gradient is not None and not math.isfinite(row.gradient):
            return found_at(row, "non-finite", "the gradient at its output is NaN or infinite")
    return None


def _symmetric(measured: Measurement) -> Finding | None:
    row = next((row for row in measured.rows if row.is_symmetric), None)
    if row is None:
        return None
    return found_at(
        row,
        "symmetric",
        "all rows of its weight are equal, so its outputs differ by the bias at most and learn "
        "the same",
    )


def _dead(measured: Measurement) -> Iterator[Finding]:
    rows = [row for row in measured.rows if row.dead is not None and row.dead >= SOME_DEAD]
    if not rows:
        return
    worst = max(rows, key=lambda row: row.dead or 0.0)
    assert worst.dead is not None
    first = next(row for row in rows if (row.dead or 0.0) >= min(worst.dead, MOST_DEAD))
    what = "the whole activation is" if first.dead == 1 else f"{first.dead:.0%} of its units are"
    others = sum((row.dead or 0.0) >= min(worst.dead, MOST_DEAD) for row in rows) - 1
    is_chance = all(_by_chance(row) for row in rows if (row.dead or 0.0) >= MOST_DEAD)
    more = f" (and {others} more like it)" if others else ""
    yield found_at(
        first,
        "dead" if worst.dead >= MOST_DEAD and not is_chance else "remark",
        f"{what} dead: every sample gives the same output and gradient zero{more}",
    )


def _by_chance(row: DiagnosedLayer) -> bool:
    """Whether so many dead units may be those whose sign happens to be negative.

    Where the samples hardly differ, as after global pooling, every unit is either dead or linear,
    each as likely as the other.
    """
    dead = round((row.units or 0) * (row.dead or 0.0))
    both = dead + round((row.units or 0) * (row.linear or 0.0))
    ways: int = sum(math.comb(both, each) for each in range(dead, both + 1))
    return ways * CHANCE > 1 << both


def _saturated(measured: Measurement) -> Finding | None:
    for row in measured.rows:
        is_hidden = any(each.position > row.position for each in measured.layers)
        is_flat = row.saturated is not None and row.saturated >= MOST_SATURATED
        if is_flat and is_hidden and not row.is_gate:
            return found_at(
                row,
                "saturated",
                f"{row.saturated:.0%} of its units are saturated: their slope is below 0.01 for at "
                "least half of the samples",
            )
    return None


_NONLINEAR = ("softmax", "scaleddotproductattention", "mul", "maxpool", "amax", "bmm")
"""In the names of functions and classes, as `plain_name` has them."""


def _linear(measured: Measurement) -> Finding | None:
    return _without_activation(measured) or _on_a_line(measured)


def _without_activation(measured: Measurement) -> Finding | None:
    """Layers that could be one; single ones may be meant, as between an encoder and its code."""
    pairs, layers = layers_in_a_row(measured.flow.calls)
    if not pairs:
        return None
    rows = {id(measured.flow.calls[index]): row for index, row in measured.at.items()}
    first, second = (rows[id(call)] for call in pairs[0])
    more = f" (and {len(pairs) - 1} more like it)" if len(pairs) > 1 else ""
    return found_at(
        first,
        "linear" if 2 * len(pairs) > layers - 1 else "remark",
        f"nothing nonlinear comes between it and `{second.name}`, so the two could be one "
        f"layer{more}",
    )


def _on_a_line(measured: Measurement) -> Finding | None:
    rows = [row for row in measured.rows if row.kind == "activation"]
    if not rows or any((row.linear or 0.0) < 0.99 for row in rows):
        return None
    names = {plain_name(call.target) for call in measured.flow.calls}
    if any(row.is_gate for row in rows) or any(
        each in name for each in _NONLINEAR for name in names
    ):
        return None
    return found_at(
        rows[0],
        "linear",
        "every activation works on a straight part of its curve, so the network is nearly linear",
    )
