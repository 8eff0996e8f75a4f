"""What a comparison found, in sentences, a table and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpelu.lab.compare.comparison import Arm, ModelComparison
from mpelu.lab.errors import listed, plural
from mpelu.lab.plots import Plot, Series
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.statistics import POWER, Pairing, mean_std
from mpelu.lab.sweep.study import Setting
from mpelu.lab.sweep.table import last_error, pair
from mpelu.lab.tables import Cell, Result

_DIVERGED = (
    "a run that diverged has no test error and loses its pair; where there is one, the pairs that "
    "an activation wins and loses are counted, and an exact sign test takes the place of the "
    "interval"
)


def summarize(comparison: ModelComparison, gathered: Gathered) -> Result:
    """The result of a comparison, of which at least one run has ended."""
    rows = dict(zip(comparison.arms, gathered.rows, strict=True))
    base, *others = comparison.arms
    differences = {arm: pair(rows[arm], rows[base], many=len(others)) for arm in others}
    verdicts = [verdict(arm, base, differences[arm]) for arm in others]
    together = f"; they hold for all {len(others)} differences together" if len(others) > 1 else ""
    config, has_inits = comparison.config, len({arm.init for arm in comparison.arms}) > 1
    tests = [test for each in gathered.ended() for test in each.run.tests]
    measured = "Validation" if any("validation_error" in test for test in tests) else "Test"
    small = measured.lower()
    notes = [
        *verdicts,
        "differences: of test errors, in percentage points; the mean over seeds, each against "
        f"{base.title} with the same seed, and so the same initial weights and batches; 95 % "
        f"intervals by a paired t test{together}",
        *_notes_of_rates(comparison),
        *([_DIVERGED] if any(each.diverged for each in gathered.ended()) else []),
        f"could show: the difference that so many seeds show with probability {POWER:.0%}",
        f"every run: {plural(config.iterations or 0, 'step')} of {config.batch_size} images, "
        f"{config.optimizer}, {config.schedule} schedule; budget {comparison.budget}",
        "time and memory: of one training step, measured alone before the runs; memory is what "
        "the step keeps for its backward pass",
        *comparison.notes,
        *(f"left out: {each}" for each in gathered.left_out),
    ]
    return gathered.result(
        header=(
            "activation", *(["init"] if has_inits else []), "test error %",
            "difference [95 % interval]", "could show", "ms per step", "MiB", "learning rate",
        ),
        rows=tuple(
            _row(comparison, arm, rows[arm], differences.get(arm), has_inits)
            for arm in comparison.arms
        ),
        headline=f"{_headline(rows, differences, verdicts)}; {_rates(comparison)}",
        notes=tuple(notes),
        plots=(
            _plot(rows, "tests", f"{small}_error", title=f"{measured} error, mean over seeds",
                  y_label=f"{small} error %"),
            _plot(rows, "steps", "loss", title="Training loss, mean over seeds", y_label="loss",
                  log_y=True),
        ),
    )  # fmt: skip


def verdict(arm: Arm, base: Arm, found: Pairing) -> str:
    """What can be said about an arm, in a sentence."""
    names = f"{arm.title} and {base.title}"
    if not found.pairs:
        return f"{names}: no pair of runs that ended to compare"
    if found.pairs < 2:
        return f"{names}: one pair of runs says nothing; more seeds are needed"
    if found.difference is None or bool(found.found) != found.excludes_zero:
        return _counted(arm, base, found)
    if not found.excludes_zero:
        return (
            f"{names}: no difference found ({found.difference:+.2f} percentage points, between "
            f"{found.low:+.2f} and {found.high:+.2f}); {plural(found.pairs, 'seed')} could "
            f"show {found.detectable:.2f}"
        )
    word = "lower" if found.difference < 0 else "higher"
    least, most = sorted((abs(found.low), abs(found.high)))
    return (
        f"{arm.title} has a {word} test error than {base.title}: by {abs(found.difference):.2f} "
        f"percentage points (between {least:.2f} and {most:.2f})"
    )


def _counted(arm: Arm, base: Arm, found: Pairing) -> str:
    """The verdict where runs diverged."""
    if not found.wins + found.losses:
        return f"{arm.title} and {base.title}: both diverged with every seed"
    test = f"sign test, p = {found.chance:.2g}"
    if found.found:
        word, count = ("better", found.wins) if found.found < 0 else ("worse", found.losses)
        pairs = plural(found.pairs, "pair")
        return f"{arm.title} does {word} than {base.title}: in {count} of {pairs} ({test})"
    return (
        f"{arm.title} wins {found.wins} of {plural(found.pairs, 'pair')} and {base.title} "
        f"{found.losses}, which is not enough to call either better ({test})"
    )


def _row(
    comparison: ModelComparison, arm: Arm, runs: Setting, found: Pairing | None, has_inits: bool
) -> tuple[Cell, ...]:
    values = tuple(value for each in runs.ended if (value := last_error(each)) is not None)
    diverged = sum(each.diverged for each in runs.ended)
    mean, std = mean_std(values) if values else (None, 0.0)
    error = "no value" if mean is None else f"{mean:.2f}"
    error += f" ± {std:.2f}" if len(values) > 1 else ""
    error += f", {diverged} of {len(runs.ended)} diverged" if diverged else ""
    shown, detectable = Cell(""), Cell("")
    if found is not None and found.difference is not None:
        shown = Cell(found.short(), found.difference)
        if found.pairs > 1:
            detectable = Cell(f"{found.detectable:.2f}", round(found.detectable, 2))
    elif found is not None and found.pairs:
        shown = Cell(f"wins {found.wins} of {plural(found.pairs, 'pair')}, loses {found.losses}")
    cost = comparison.costs[arm.name]
    return (
        Cell(arm.label),
        *([Cell(arm.init)] if has_inits else []),
        Cell(error, mean, values),
        shown,
        detectable,
        Cell(f"{1000 * cost.step:.3g}", 1000 * cost.step),
        Cell(f"{cost.memory:.3g}", cost.memory),
        Cell(f"{comparison.lr(arm):g}", comparison.lr(arm)),
    )


def _headline(
    rows: Mapping[Arm, Setting], differences: Mapping[Arm, Pairing], verdicts: Sequence[str]
) -> str:
    """The runs that diverged, the differences that were found, then the arms without one."""
    base = next(iter(rows))
    same = {
        arm.title: each
        for arm, each in differences.items()
        if each.difference is not None and each.pairs > 1 and not each.excludes_zero
    }
    found = _diverged(rows) + [
        text for text, arm in zip(verdicts, differences, strict=True) if arm.title not in same
    ]
    if same:
        could = [each.detectable for each in same.values()]
        least, most = f"{min(could):.2f}", f"{max(could):.2f}"
        size = least if least == most else f"{least} to {most}"
        pairs = min(each.pairs for each in same.values())
        found.append(
            f"no difference found between {base.title} and {listed(list(same))}; "
            f"{plural(pairs, 'seed')} could show one of {size} percentage points"
        )
    return "; ".join(found)


def _diverged(rows: Mapping[Arm, Setting]) -> list[str]:
    """How many runs of each arm diverged, if one did; the first arm is always named."""
    counts = {arm: sum(each.diverged for each in runs.ended) for arm, runs in rows.items()}
    if not any(counts.values()):
        return []
    base = next(iter(rows))
    words = [
        f"{arm.title} {'' if place else 'diverged '}in "
        + (f"{counts[arm]} of {plural(len(rows[arm].ended), 'run')}" if counts[arm] else "none")
        for place, arm in enumerate(arm for arm in rows if counts[arm] or arm is base)
    ]
    return [listed(words, "and")]


def _rates(comparison: ModelComparison) -> str:
    """The learning rate of each arm, and whether one of them may be favored."""
    if not comparison.rates:
        return (
            f"learning rate {comparison.config.lr:g} for all, which may favor an activation that "
            "it suits (--lr auto finds one for each)"
        )
    rates = [f"{comparison.lr(arm):g} for {arm.title}" for arm in comparison.arms]
    at_edge = [arm.title for arm in comparison.arms if comparison.rates[arm.name].is_at_edge]
    edge = f", at the edge of what was tried for {listed(at_edge, 'and')}" if at_edge else ""
    return f"learning rates found: {listed(rates, 'and')}{edge}"


def _notes_of_rates(comparison: ModelComparison) -> list[str]:
    """How learning rates were chosen, and what was found for each arm."""
    if not comparison.rates:
        return []
    runs = sum(len(each.tried) for each in comparison.rates.values())
    return [
        f"learning rates: chosen by the error on validation images, in {plural(runs, 'run')} of "
        f"{plural(comparison.search_steps, 'step')} with a seed that is not used for anything else",
        *(
            f"learning rate of {arm.title}: {comparison.rates[arm.name].describe()}"
            for arm in comparison.arms
        ),
    ]


def _plot(rows: Mapping[Arm, Setting], kind: str, quantity: str, **how: Any) -> Plot:
    """The mean over seeds, at the steps that every run has reached."""
    found = []
    for arm, runs in rows.items():
        values: dict[int, list[float]] = {}
        for each in runs.ended:
            for row in getattr(each.run, kind):
                if is_number(row.get("step")) and is_number(row.get(quantity)):
                    values.setdefault(row["step"], []).append(row[quantity])
        if values:
            # A mean ends where a run diverged: that of the others would hide it.
            steps = sorted(s for s, each in values.items() if len(each) == len(runs.ended))
            means = [sum(values[step]) / len(values[step]) for step in steps]
            found.append(Series(arm.title, steps, means, arm.activation))
    return Plot(x_label="step", series=tuple(found), **how)
