"""The one sentence of a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence

from mpelu.diagnosis.finding import Finding, number
from mpelu.diagnosis.rows import Measurement, gradient_ratio
from mpelu.diagnosis.trials import METHODS, Trial

CURABLE = (
    "non-finite", "signal dies", "signal explodes", "gradient vanishes", "gradient explodes",
    "dead", "symmetric", "saturated", "linear",
)  # fmt: skip
"""Kinds of problems that other weights may solve."""


def sentence_of(measured: Measurement, findings: Sequence[Finding], trials: Sequence[Trial]) -> str:
    """The worst that was found and what would solve it, or that all is well, with figures."""
    problems = [each for each in findings if each.is_problem]
    if not problems:
        return _healthy(measured)
    worst = problems[0]
    if worst.kind not in CURABLE:
        return worst.text
    cure = next((trial for trial in trials if not trial.problem), None)
    if cure is None:
        return f"{worst.text}; no initialization of {', '.join(METHODS)} would change that"
    assert cure.signal is not None
    method, _, swap = cure.method.partition(" ")
    call = f"initialize_(model, example_inputs, method='{method}')"
    if swap:
        call = f"no initialization alone would change that; {swap}, {call}"
    verb = "hold it at" if worst.kind.startswith("signal") else "give the signal a variance of"
    return f"{worst.text}; {call} would {verb} {number(cure.signal)} in the last layer"


def _healthy(measured: Measurement) -> str:
    layers = measured.layers
    signals = [row.signal for row in layers]
    ratio = gradient_ratio(measured)
    dead = [row.dead for row in measured.rows if row.dead is not None]
    parts = [
        f"healthy: the signal's variance is between {number(min(signals))} and "
        f"{number(max(signals))} over {len(layers)} layers, {number(signals[-1])} at the last "
        f"(`{layers[-1].name}`)"
    ]
    if ratio is not None:
        parts.append(f"the first weights matter {number(ratio)} times as much as the last")
    if dead:
        parts.append(f"at most {max(dead):.0%} of an activation's units are dead")
    return "; ".join(parts)
