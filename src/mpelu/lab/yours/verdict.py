"""What a comparison found, in sentences, a table and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mpelu.lab.errors import listed, plural
from mpelu.lab.studies.gather import Gathered, SettingRuns, is_number
from mpelu.lab.studies.results import Cell, Plot, Result, Series
from mpelu.lab.studies.statistics import POWER, Interval, mean_std, paired_difference
from mpelu.lab.studies.summary import NoRuns, last_error
from mpelu.lab.yours.comparison import Arm, ModelComparison


def summarize(comparison: ModelComparison, gathered: Gathered) -> Result:
    """The result of a comparison.

    Raises:
        NoRuns: if no run has ended.
    """
    if not gathered.ended():
        first = f"; {gathered.left_out[0]}" if gathered.left_out else ""
        raise NoRuns(f"compare: expected at least one finished run, got none{first}")
    rows = dict(zip(comparison.arms, gathered.rows, strict=True))
    base, *others = comparison.arms
    differences = {arm: difference(rows[arm], rows[base], len(others)) for arm in others}
    verdicts = [verdict(arm, base, differences[arm]) for arm in others]
    together = f"; they hold for all {len(others)} differences together" if len(others) > 1 else ""
    steps = comparison.config.iterations
    notes = [
        *verdicts,
        "differences: of test errors, in percentage points; the mean over seeds, each against "
        f"{base.title} with the same seed, and so the same initial weights and batches; 95 % "
        f"intervals by a paired t test{together}",
        f"could show: the difference that so many seeds show with probability {POWER:.0%}",
        f"every run: {plural(steps or 0, 'step')} of {comparison.config.batch_size} images, "
        f"{_optimizer(comparison)}; budget {comparison.budget}",
        "time and memory: of one training step, measured alone before the runs; memory is what "
        "the step keeps for its backward pass",
        *comparison.notes,
        *(f"left out: {each}" for each in gathered.left_out),
    ]
    return Result(
        study="compare",
        title=gathered.study.title,
        scale="full",
        seeds=comparison.seeds,
        data=comparison.config.data,
        header=(
            "activation", *(["init"] if _has_inits(comparison) else []), "test error %",
            "difference [95 % interval]", "could show", "ms per step", "MiB",
        ),
        rows=tuple(
            _row(comparison, arm, rows[arm], differences.get(arm)) for arm in comparison.arms
        ),
        headline=_headline(base, differences, verdicts),
        notes=tuple(notes),
        plots=(
            Plot(
                title="Test error, mean over seeds",
                x_label="step",
                y_label="test error %",
                series=tuple(_curves(rows, "tests", "test_error")),
            ),
            Plot(
                title="Training loss, mean over seeds",
                x_label="step",
                y_label="loss",
                log_y=True,
                series=tuple(_curves(rows, "steps", "loss")),
            ),
        ),
        runs=tuple(f"{each.run.path.relative_to(gathered.folder)}" for each in gathered.ended()),
    )  # fmt: skip


def difference(first: SettingRuns, second: SettingRuns, comparisons: int) -> Interval | None:
    """The difference of two arms over the seeds that both finished; None if there is none."""
    ones = {each.named.seed: last_error(each) for each in first.ended}
    others = {each.named.seed: last_error(each) for each in second.ended}
    pairs = [
        (one, other)
        for seed in sorted({*ones} & {*others})
        if (one := ones[seed]) is not None and (other := others[seed]) is not None
    ]
    if not pairs:
        return None
    left, right = zip(*pairs, strict=True)
    return paired_difference(left, right, comparisons=comparisons)


def verdict(arm: Arm, base: Arm, found: Interval | None) -> str:
    """What can be said about an arm, in a sentence."""
    names = f"{arm.title} and {base.title}"
    if found is None:
        return f"{names}: no pair of finished runs to compare"
    if found.pairs < 2:
        return f"{names}: one pair of runs says nothing; more seeds are needed"
    if not found.found:
        return (
            f"{names}: no difference found ({found.difference:+.2f} percentage points, between "
            f"{found.low:+.2f} and {found.high:+.2f}); {plural(found.pairs, 'seed')} could show "
            f"{found.detectable:.2f}"
        )
    word = "lower" if found.difference < 0 else "higher"
    return (
        f"{arm.title} has a {word} test error than {base.title}: by {abs(found.difference):.2f} "
        f"percentage points (between {min(abs(found.low), abs(found.high)):.2f} and "
        f"{max(abs(found.low), abs(found.high)):.2f})"
    )


def _row(
    comparison: ModelComparison, arm: Arm, runs: SettingRuns, found: Interval | None
) -> tuple[Cell, ...]:
    values = tuple(value for each in runs.ended if (value := last_error(each)) is not None)
    diverged = sum(each.diverged for each in runs.ended)
    mean, std = mean_std(values) if values else (None, 0.0)
    error = "no value" if mean is None else f"{mean:.2f}"
    error += f" ± {std:.2f}" if len(values) > 1 else ""
    error += f", {diverged} of {len(runs.ended)} diverged" if diverged else ""
    shown = detectable = ""
    if found is not None:
        shown = f"{found.difference:+.2f}"
        if found.pairs > 1:
            shown += f" [{found.low:+.2f}, {found.high:+.2f}]"
            detectable = f"{found.detectable:.2f}"
    cost = comparison.costs[arm.name]
    return (
        Cell(arm.label),
        *([Cell(arm.init)] if _has_inits(comparison) else []),
        Cell(error, mean, values),
        Cell(shown, None if found is None else found.difference),
        Cell(detectable, float(detectable) if detectable else None),
        Cell(f"{1000 * cost.step:.3g}", 1000 * cost.step),
        Cell(f"{cost.memory:.3g}", cost.memory),
    )


def _has_inits(comparison: ModelComparison) -> bool:
    return len({arm.init for arm in comparison.arms}) > 1


def _headline(
    base: Arm, differences: Mapping[Arm, Interval | None], verdicts: Sequence[str]
) -> str:
    """The differences that were found, then the arms without one."""
    found = [
        text
        for text, each in zip(verdicts, differences.values(), strict=True)
        if each is None or each.pairs < 2 or each.found
    ]
    same = {
        arm.title: each
        for arm, each in differences.items()
        if each is not None and each.pairs > 1 and not each.found
    }
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


def _optimizer(comparison: ModelComparison) -> str:
    config = comparison.config
    return f"{config.optimizer}, learning rate {config.lr:g}, {config.schedule} schedule"


def _curves(rows: dict[Arm, SettingRuns], kind: str, quantity: str) -> list[Series]:
    """The mean over the seeds that have a value at each step."""
    found = []
    for arm, runs in rows.items():
        values: dict[int, list[float]] = {}
        for each in runs.ended:
            for row in getattr(each.run, kind):
                if is_number(row.get("step")) and is_number(row.get(quantity)):
                    values.setdefault(row["step"], []).append(row[quantity])
        if values:
            steps = sorted(values)
            means = [_mean(values[step]) for step in steps]
            found.append(Series(arm.title, steps, means, arm.activation))
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
