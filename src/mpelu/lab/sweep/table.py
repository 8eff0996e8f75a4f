"""Makes the table of a study from its runs: a row for each setting, with differences below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpelu.lab.errors import plural
from mpelu.lab.plots import Plot, Series
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.statistics import Pairing, pair_seeds, paper_value, text_of
from mpelu.lab.sweep.study import Job, Setting
from mpelu.lab.tables import SHRUNK, Cell, Result

Value = Callable[[Job], "float | None"]
"""What a run measured; None if it has no such value, for example because it diverged."""
Text = Callable[[Sequence[Job], Sequence[float]], str]
"""How the runs of a setting, and their values, read in the table."""
_SOURCES = {"paper": "the paper", "code": "the published code"}


def last_error(ended: Job) -> float | None:
    """Test error of the last test."""
    return None if ended.diverged else ended.run.status.get("test_error")


def lowest_error(ended: Job) -> float | None:
    """Lowest test error of all tests."""
    return None if ended.diverged else ended.run.status.get("best_error")


def plain_text(ended: Sequence[Job], values: Sequence[float]) -> str:
    """Best (mean ± std), with diverged runs counted."""
    return text_of(values, sum(each.diverged for each in ended))


def tabulate(
    gathered: Gathered,
    *,
    measured: str | None = None,
    shrunk: tuple[str, ...] = (),
    digits: int = 2,
    value: Value = last_error,
    text: Text = plain_text,
    plots: tuple[Plot, ...] = (),
    notes: tuple[str, ...] = (),
) -> Result:
    """A row for each setting: labels, paper, measurement, every seed, n and diverged runs.

    Where the paper has no value at all, it has no column.

    Args:
        gathered: the runs, at least one of which has ended.
        measured: what is measured, if it isn't exactly the paper's quantity.
        shrunk: what was scaled down besides the configs.
        digits: digits after the decimal point in the values of single runs.
        value: the value of a run.
        text: the text of a setting.
        plots: plots beside the table.
        notes: notes after the usual ones.
    """
    study = gathered.study
    phrases = [row.shrunk for row in gathered.rows if row.config is not None]
    common = tuple(each for each in phrases[0] if all(each in other for other in phrases))
    # A row's own differences get a column, if there are any.
    has_own = any(set(each) - set(common) for each in phrases)
    # With one run per setting, the measurement already says all.
    has_many = any(len(row.ended) > 1 for row in gathered.rows)
    has_paper = any(row.paper for row in gathered.rows)
    rows = []
    for row in gathered.rows:
        found = [value(each) for each in row.ended]
        values = tuple(each for each in found if each is not None)
        mean = sum(values) / len(values) if values else None
        diverged = sum(each.diverged for each in row.ended)
        if row.config is None:
            measurement = Cell("quoted, not run")
        else:
            measurement = Cell(text(row.ended, values), mean, values)
        singles = [_single(*each, digits) for each in zip(row.ended, found, strict=True)]
        own = ", ".join(each for each in row.shrunk if each not in common)
        rows.append((
            *map(Cell, row.labels),
            *([Cell(row.paper, paper_value(row.paper))] if has_paper else []),
            measurement,
            *([Cell(", ".join(singles))] if has_many else []),
            Cell(str(len(row.ended)), len(row.ended)),
            Cell(str(diverged), diverged),
            *([Cell(own)] if has_own else []),
        ))  # fmt: skip
    width = len(study.labels)
    header = (
        *study.labels,
        *([f"paper, {study.quantity}"] if has_paper else []),
        f"measured, {measured or study.quantity}",
        *(["all runs"] if has_many else []),
        "n",
        "diverged",
        *([SHRUNK] if has_own else []),
    )
    return gathered.result(
        shrunk=(*common, *shrunk),
        header=header,
        rows=tuple(rows),
        compare=((width, width + 1),) if has_paper else (),
        notes=(*_notes(gathered, value), *notes),
        plots=plots,
    )


def _single(ended: Job, value: float | None, digits: int) -> str:
    if value is not None:
        return f"{value:.{digits}f}"
    if not ended.diverged:
        return "-"
    details = ended.run.status.get("diverged")
    step = (details if isinstance(details, dict) else ended.run.status).get("step")
    return f"diverged at step {step}"


def _notes(gathered: Gathered, value: Value) -> list[str]:
    study, options = gathered.study, gathered.options
    source = study.source(options)
    notes = []
    if study.sources:
        (other,) = (each for each in study.sources if each != source)
        notes.append(
            f"follows {_SOURCES[source]}: {study.sources[source]} (use --follow {other} for "
            f"{_SOURCES[other]})"
        )
    found = {row.name: row for row in gathered.rows}
    if not options.is_smoke:
        pairs = [each for each in study.comparisons if set(each) <= set(found)]
        notes += [compared(found[one], found[other], value, len(pairs)) for one, other in pairs]
    dropped = [each.name for each in study.settings(source) if each.name not in found]
    if dropped:
        count = plural(len(dropped), "setting")
        notes.append(f"{count} not run at this scale: {', '.join(dropped)}")
    if gathered.left_out:
        notes.append(f"{len(gathered.left_out)} left out: {'; '.join(gathered.left_out)}")
    return notes


def pair(first: Setting, second: Setting, value: Value = last_error, many: int = 1) -> Pairing:
    """The difference of two settings, one of this many that are reported together."""
    ones, others = ({each.seed: value(each) for each in row.ended} for row in (first, second))
    return pair_seeds(ones, others, comparisons=many)


def compared(first: Setting, second: Setting, value: Value, many: int) -> str:
    """The difference that `pair` finds, as a line of notes."""
    found = pair(first, second, value, many)
    runs = (*first.ended, *second.ended)
    lacking = "diverged" if any(each.diverged for each in runs) else "have no such value"
    counted = f"; {sum(found.lacking)} of {plural(len(runs), 'run')} {lacking}"
    together = f" for all {many} differences" if many > 1 else ""
    has_interval = found.difference is not None and found.pairs > 1
    kind = f", 95 % paired t interval{together}" if has_interval else ""
    return (
        f"{first.name} - {second.name}: {found.text()}{kind}{counted if any(found.lacking) else ''}"
    )


def curves(gathered: Gathered, kind: str, quantity: str) -> tuple[Series, ...]:
    """A line for the first run of each setting, from the rows that have the quantity."""
    found = []
    for row in gathered.rows:
        if row.ended:
            run = row.ended[0].run
            points = [
                (each["step"], each[quantity])
                for each in (run.steps if kind == "step" else run.tests)
                if is_number(each.get("step")) and is_number(each.get(quantity))
            ]
            x, y = [point[0] for point in points], [point[1] for point in points]
            config = row.config
            activation = "" if config is None else config.convert or config.activation or ""
            found.append(Series(row.name, x, y, activation))
    return tuple(found)


def plots_of(gathered: Gathered, *plots: tuple[str, str, str, str]) -> tuple[Plot, ...]:
    """A plot over iterations for each title, kind of rows, quantity and label."""
    return tuple(
        Plot(
            title=title,
            x_label="iterations",
            y_label=label,
            series=curves(gathered, kind, quantity),
        )
        for title, kind, quantity, label in plots
    )
