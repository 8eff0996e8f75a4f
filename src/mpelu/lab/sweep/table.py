"""Makes the table of a study from its runs: a row for each setting, with differences below."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mpelu.lab.errors import plural
from mpelu.lab.sweep.gather import FoundRun, Gathered, SettingRuns, is_number
from mpelu.lab.sweep.results import SHRUNK, Cell, Plot, Result, Series
from mpelu.lab.sweep.statistics import Pairing, pair_seeds, paper_value, text_of

Value = Callable[[FoundRun], "float | None"]
"""What a run measured; None if it has no such value, for example because it diverged."""
Text = Callable[[Sequence[FoundRun], Sequence[float]], str]
"""How the runs of a setting, and their values, read in the table."""
_SOURCES = {"paper": "the paper", "code": "the published code"}


def last_error(ended: FoundRun) -> float | None:
    """Test error of the last test."""
    return None if ended.diverged else ended.run.status.get("test_error")


def lowest_error(ended: FoundRun) -> float | None:
    """Lowest test error of all tests."""
    return None if ended.diverged else ended.run.status.get("best_error")


def plain_text(ended: Sequence[FoundRun], values: Sequence[float]) -> str:
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
    plots: Callable[[Gathered], tuple[Plot, ...]] = lambda gathered: (),
    notes: tuple[str, ...] = (),
) -> Result:
    """A row for each setting: labels, paper, measurement, every seed, n and diverged runs.

    Where the paper has no value at all, it has no column.

    Args:
        gathered: the runs.
        measured: what is measured, if it isn't exactly the paper's quantity.
        shrunk: what was scaled down besides the configs.
        digits: digits after the decimal point in the values of single runs.
        value: the value of a run.
        text: the text of a setting.
        plots: plots beside the table.
        notes: notes after the usual ones.

    Raises:
        NoRuns: if no run has ended.
    """
    study, options = gathered.study, gathered.options
    ended = gathered.require_ended()
    phrases = [row.setting.shrunk for row in gathered.rows if row.setting.config is not None]
    common = tuple(each for each in phrases[0] if all(each in other for other in phrases))
    # A row's own differences get a column, if there are any.
    has_own = any(set(each) - set(common) for each in phrases)
    # With one run per setting, the measurement already says all.
    has_many = any(len(row.ended) > 1 for row in gathered.rows)
    has_paper = any(row.setting.paper for row in gathered.rows)
    rows = []
    for row in gathered.rows:
        cells = _cells(row, value, text, has_many, digits, has_paper)
        own = ", ".join(each for each in row.setting.shrunk if each not in common)
        rows.append((*cells, Cell(own)) if has_own else cells)
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
    return Result(
        study=study.name,
        title=study.title,
        scale=options.scale,
        shrunk=(*common, *shrunk),
        seeds=study.seed_count(options),
        data=", ".join(sorted({str(each.run.config["data"]) for each in ended})),
        header=header,
        rows=tuple(rows),
        compare=((width, width + 1),) if has_paper else (),
        notes=(*_notes(gathered, value), *notes),
        plots=plots(gathered),
        runs=gathered.run_names(),
    )


def _cells(
    row: SettingRuns, value: Value, text: Text, has_many: bool, digits: int, has_paper: bool
) -> tuple[Cell, ...]:
    setting = row.setting
    labels = [Cell(label) for label in setting.labels]
    if has_paper:
        labels.append(Cell(setting.paper, paper_value(setting.paper)))
    if row.setting.config is None:
        none = (Cell(""),) if has_many else ()
        return (*labels, Cell("quoted, not run"), *none, Cell("0", 0), Cell("0", 0))
    found = [value(each) for each in row.ended]
    values = tuple(each for each in found if each is not None)
    mean = sum(values) / len(values) if values else None
    diverged = sum(each.diverged for each in row.ended)
    singles = ", ".join(_single(*pair, digits) for pair in zip(row.ended, found, strict=True))
    return (
        *labels,
        Cell(text(row.ended, values), mean, values),
        *([Cell(singles)] if has_many else []),
        Cell(str(len(row.ended)), len(row.ended)),
        Cell(str(diverged), diverged),
    )


def _single(ended: FoundRun, value: float | None, digits: int) -> str:
    if value is not None:
        return f"{value:.{digits}f}"
    return f"diverged at step {diverged_at(ended)}" if ended.diverged else "-"


def diverged_at(ended: FoundRun) -> int | None:
    """The step at which a run diverged."""
    details = ended.run.status.get("diverged")
    return (details if isinstance(details, dict) else ended.run.status).get("step")


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
    found = {row.setting.name: row for row in gathered.rows}
    if not options.is_smoke:
        pairs = [each for each in study.comparisons if set(each) <= set(found)]
        notes += [
            compared(found[first], found[second], value, len(pairs)) for first, second in pairs
        ]
    dropped = [each.name for each in study.settings(source) if each.name not in found]
    if dropped:
        count = plural(len(dropped), "setting")
        notes.append(f"{count} not run at this scale: {', '.join(dropped)}")
    if gathered.left_out:
        notes.append(f"{len(gathered.left_out)} left out: {'; '.join(gathered.left_out)}")
    return notes


def pair(
    first: SettingRuns, second: SettingRuns, value: Value = last_error, comparisons: int = 1
) -> Pairing:
    """The difference of two settings over the seeds that both have.

    Args:
        first: a setting with its runs.
        second: the one to compare with.
        value: the value of a run.
        comparisons: number of differences that are reported together.
    """
    ones, others = ({each.job.seed: value(each) for each in row.ended} for row in (first, second))
    return pair_seeds(ones, others, comparisons=comparisons)


def compared(
    first: SettingRuns, second: SettingRuns, value: Value = last_error, comparisons: int = 1
) -> str:
    """The difference that `pair` finds, as a line of notes."""
    names = f"{first.setting.name} - {second.setting.name}"
    found = pair(first, second, value, comparisons)
    runs = (*first.ended, *second.ended)
    lacking = "diverged" if any(each.diverged for each in runs) else "have no such value"
    counted = f"; {sum(found.lacking)} of {plural(len(runs), 'run')} {lacking}"
    together = f" for all {comparisons} differences" if comparisons > 1 else ""
    many = found.interval is not None and found.interval.pairs > 1
    kind = f", 95 % paired t interval{together}" if many else ""
    return f"{names}: {found.text()}{kind}{counted if any(found.lacking) else ''}"


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
            config = row.setting.config
            activation = "" if config is None else config.convert or config.activation or ""
            found.append(Series(row.setting.name, x, y, activation))
    return tuple(found)
