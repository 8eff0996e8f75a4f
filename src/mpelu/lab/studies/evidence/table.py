"""The table of a study: the error of every setting, and differences with their intervals."""

from __future__ import annotations

import statistics
from dataclasses import replace

from mpelu.lab.studies import drawing
from mpelu.lab.studies.evidence import figures
from mpelu.lab.studies.evidence.kept import KEPT, KeptStudy, keep, steps_to, write
from mpelu.lab.studies.gather import Gathered
from mpelu.lab.studies.results import Cell, Result
from mpelu.lab.studies.statistics import POWER, Pairing, mean_std
from mpelu.lab.studies.summary import NoRuns


def summarize(gathered: Gathered, *, reach: float | None = None, has_figure: bool = True) -> Result:
    """Keeps the runs, draws them and makes the table.

    Args:
        gathered: the runs.
        reach: a test error in %; the table tells how many steps it took to reach it.
        has_figure: whether there is something to draw.
    """
    study, options = gathered.study, gathered.options
    if not gathered.ended():
        first = f"; {gathered.left_out[0]}" if gathered.left_out else ""
        raise NoRuns(f"{study.name}: expected at least one finished run, got none{first}")
    kept = keep(gathered)
    if options.is_smoke:  # a difference would mean nothing
        kept = replace(kept, comparisons=[])
    gathered.folder.mkdir(parents=True, exist_ok=True)
    write(kept, gathered.folder / KEPT)
    drawn = drawing.save(figures.study(kept), gathered.folder, "figure") if has_figure else ()
    header, rows = cells(kept, reach)
    return Result(
        study=study.name,
        title=study.title,
        scale=options.scale,
        shrunk=next((row.scaled.shrunk for row in gathered.rows), ()),
        seeds=study.seed_count(options),
        data=str(gathered.ended()[0].run.config["data"]),
        header=header,
        rows=rows,
        notes=(*notes(kept), *_left_out(gathered)),
        figures=drawn,
        runs=tuple(f"{each.run.path.relative_to(gathered.folder)}" for each in gathered.ended()),
    )


def cells(
    kept: KeptStudy, reach: float | None = None
) -> tuple[tuple[str, ...], tuple[tuple[Cell, ...], ...]]:
    """Header and rows."""
    compared = sorted({kept.labels[second] for _, second in kept.comparisons})
    header = (
        "setting",
        "test error %",
        *([f"difference to {' or '.join(compared)}", "could show"] if compared else []),
        *([f"steps to {reach:g} %"] if reach is not None else []),
        "n",
        "diverged",
    )
    rows = []
    for name, label in kept.labels.items():
        row = [Cell(label), _error(kept, name)]
        if compared:
            row += _difference(kept.difference(name))
        if reach is not None:
            row.append(_steps(kept, name, reach))
        count = sum(run.setting == name for run in kept.runs)
        diverged = kept.diverged(name)
        rows.append((*row, Cell(str(count), count), Cell(str(diverged), diverged)))
    return header, tuple(rows)


def _error(kept: KeptStudy, setting: str) -> Cell:
    errors = tuple(kept.errors(setting).values())
    if not errors:
        return Cell("-")
    mean, std = mean_std(errors)
    text = f"{mean:.2f} ± {std:.2f}" if len(errors) > 1 else f"{mean:.2f}"
    return Cell(text, mean, errors)


def _difference(found: Pairing | None) -> list[Cell]:
    if found is None:
        return [Cell(""), Cell("")]
    interval = found.interval
    if interval is None:
        return [Cell(found.text()), Cell("")]
    if interval.pairs < 2:
        return [Cell(f"{interval.difference:+.2f}", interval.difference), Cell("")]
    text = f"{interval.difference:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
    return [
        Cell(text, interval.difference),
        Cell(f"{interval.detectable:.2f}", interval.detectable),
    ]


def _steps(kept: KeptStudy, setting: str, reach: float) -> Cell:
    found = [steps_to(run, reach) for run in kept.runs if run.setting == setting]
    reached = [each for each in found if each is not None]
    if not reached:
        return Cell("not reached" if found else "-")
    middle = statistics.median(reached)
    missed = (
        f" ({len(found) - len(reached)} of {len(found)} never)" if len(reached) < len(found) else ""
    )
    return Cell(f"{middle:,.0f}{missed}", middle, tuple(map(float, reached)))


def notes(kept: KeptStudy) -> tuple[str, ...]:
    """What the columns mean."""
    found = ["test error: mean ± standard deviation over seeds, after the last step"]
    if kept.comparisons:
        together = len(kept.comparisons)
        found += [
            f"differences: mean over pairs of runs with the same seed, with paired t intervals "
            f"that hold together with 95 % ({together} of them, Bonferroni)",
            f"could show: the smallest true difference that so many pairs would have shown with "
            f"probability {POWER:g}",
        ]
    return tuple(found)


def _left_out(gathered: Gathered) -> tuple[str, ...]:
    if not gathered.left_out:
        return ()
    return (f"{len(gathered.left_out)} left out: {'; '.join(gathered.left_out)}",)
