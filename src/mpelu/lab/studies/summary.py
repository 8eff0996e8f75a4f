"""From run folders to a recipe's table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from mpelu.lab.errors import UserError
from mpelu.lab.studies.gather import Gathered, Kept, Row, gather, is_number
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import SHRUNK, Cell, Plot, Result, Series, environment
from mpelu.lab.studies.statistics import paired_bootstrap, paper_value, text_of

Value = Callable[[Kept], "float | None"]
"""What a run measured; None if it ended without, as a diverged one."""
Text = Callable[[Sequence[Kept], Sequence[float]], str]


class NoRuns(UserError):
    """Nothing to make a table of."""


def last_error(kept: Kept) -> float | None:
    return None if kept.diverged else kept.run.status.get("test_error")


def lowest_error(kept: Kept) -> float | None:
    return None if kept.diverged else kept.run.status.get("best_error")


def plain_text(kept: Sequence[Kept], values: Sequence[float]) -> str:
    """Best (mean ± std), with diverged runs counted."""
    return text_of(values, sum(each.diverged for each in kept))


def table(
    recipe: Recipe,
    options: Options,
    folder: Path,
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

    Args:
        recipe: whose table.
        options: which of its runs.
        folder: of the recipe, with runs/ below.
        measured: what is measured, if it isn't the paper's quantity to the letter.
        shrunk: what configs don't tell of it.
        digits: of a run's value, after the point.
        value: of a run.
        text: of a setting's runs.
        plots: beside the table.
        notes: below the usual ones.

    Raises:
        NoRuns: if no run came to an end.
    """
    gathered = gather(recipe, options, folder)
    kept = gathered.kept()
    if not kept:
        first = f"; {gathered.left_out[0]}" if gathered.left_out else ""
        raise NoRuns(f"{recipe.name}: expected at least one finished run, got none{first}")
    texts = [row.shrunk.shrunk for row in gathered.rows if row.shrunk.config is not None]
    common = tuple(each for each in texts[0] if all(each in other for other in texts))
    # What a row shrank besides stands in a column of its own, if any row did.
    is_own = any(set(each) - set(common) for each in texts)
    # With one run each, the measurement is all there is to show.
    is_many = any(len(row.kept) > 1 for row in gathered.rows)
    rows = []
    for row in gathered.rows:
        cells = _cells(row, value, text, is_many, digits)
        own = ", ".join(each for each in row.shrunk.shrunk if each not in common)
        rows.append((*cells, Cell(own)) if is_own else cells)
    width = len(recipe.labels)
    header = (
        *recipe.labels,
        f"paper, {recipe.quantity}",
        f"measured, {measured or recipe.quantity}",
        *(["all runs"] if is_many else []),
        "n",
        "diverged",
        *([SHRUNK] if is_own else []),
    )
    data = sorted({str(each.run.config["data"]) for each in kept})
    return Result(
        recipe=recipe.name,
        title=recipe.title,
        scale=options.scale,
        shrunk=(*common, *shrunk),
        seeds=recipe.seed_count(options),
        data=", ".join(data),
        header=header,
        rows=tuple(rows),
        compare=((width, width + 1),),
        notes=(*_notes(recipe, options, gathered, value), *notes),
        plots=plots(gathered),
        runs=tuple(f"runs/{each.named.name}" for each in kept),
        environment=environment(),
    )


def _cells(row: Row, value: Value, text: Text, is_many: bool, digits: int) -> tuple[Cell, ...]:
    setting = row.shrunk.setting
    labels = tuple(Cell(label) for label in setting.labels)
    printed = Cell(setting.paper, paper_value(setting.paper))
    if row.shrunk.config is None:
        none = (Cell(""),) if is_many else ()
        return (*labels, printed, Cell("quoted, not run"), *none, Cell("0", 0), Cell("0", 0))
    found = [value(each) for each in row.kept]
    values = tuple(each for each in found if each is not None)
    mean = sum(values) / len(values) if values else None
    diverged = sum(each.diverged for each in row.kept)
    each = ", ".join(_each(kept, got, digits) for kept, got in zip(row.kept, found, strict=True))
    return (
        *labels,
        printed,
        Cell(text(row.kept, values), mean, values),
        *([Cell(each)] if is_many else []),
        Cell(str(len(row.kept)), len(row.kept)),
        Cell(str(diverged), diverged),
    )


def _each(kept: Kept, value: float | None, digits: int) -> str:
    if value is not None:
        return f"{value:.{digits}f}"
    return f"diverged at step {diverged_at(kept)}" if kept.diverged else "-"


def diverged_at(kept: Kept) -> int | None:
    details = kept.run.status.get("diverged")
    return (details if isinstance(details, dict) else kept.run.status).get("step")


def _notes(recipe: Recipe, options: Options, gathered: Gathered, value: Value) -> list[str]:
    notes = []
    if recipe.readings:
        reading = recipe.reading(options)
        others = [each for each in recipe.readings if each != reading]
        notes.append(
            f"reading: {reading} ({recipe.readings[reading]}); --reading {others[0]} for the other"
        )
    found = {row.shrunk.setting.name: row for row in gathered.rows}
    for first, second in recipe.comparisons:
        if first in found and second in found:
            notes.append(compared(found[first], found[second], value))
    named = {row.shrunk.setting.name for row in gathered.rows}
    dropped = [
        each.name for each in recipe.settings(recipe.reading(options)) if each.name not in named
    ]
    if dropped:
        notes.append(f"{len(dropped)} settings not run at this scale: {', '.join(dropped)}")
    if gathered.left_out:
        count = len(gathered.left_out)
        notes.append(f"{count} left out: " + "; ".join(gathered.left_out))
    return notes


def compared(first: Row, second: Row, value: Value = last_error) -> str:
    """The difference of two settings over seeds both have, in a line."""
    names = f"{first.shrunk.setting.name} - {second.shrunk.setting.name}"
    ones = {each.named.seed: value(each) for each in first.kept}
    others = {each.named.seed: value(each) for each in second.kept}
    common = sorted({*ones} & {*others})
    pairs = [
        (one, other)
        for seed in common
        if (one := ones[seed]) is not None and (other := others[seed]) is not None
    ]
    lost = len(common) - len(pairs)
    diverged = any(each.diverged for each in (*first.kept, *second.kept))
    lacking = "a diverged run" if diverged else "a run that has no such value"
    counted = f"; {lost} of {len(common)} pairs with {lacking}" if lost else ""
    if not pairs:
        return f"{names}: no pair of runs to compare{counted}"
    interval = paired_bootstrap([one for one, _ in pairs], [other for _, other in pairs])
    kind = ", 95 % paired bootstrap" if interval.pairs > 1 else ""
    return f"{names}: {interval.text()}{kind}{counted}"


def residual_table(recipe: Recipe, options: Options, folder: Path) -> Result:
    """The published code prints the lowest error over the epochs; the paper doesn't say."""
    code = recipe.reading(options) == "code"
    return table(recipe, options, folder, value=lowest_error if code else last_error)


def curves(gathered: Gathered, kind: str, quantity: str) -> tuple[Series, ...]:
    """A line for the first run of each setting, of rows that have the quantity as a number."""
    found = []
    for row in gathered.rows:
        if row.kept:
            run = row.kept[0].run
            points = [
                (each["step"], each[quantity])
                for each in (run.steps if kind == "step" else run.tests)
                if is_number(each.get("step")) and is_number(each.get(quantity))
            ]
            x, y = [point[0] for point in points], [point[1] for point in points]
            found.append(Series(row.shrunk.setting.name, x, y))
    return tuple(found)
