"""The learning rate of each arm: a short geometric search on validation images."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from mpelu.lab.compare.comparison import Arm, ModelComparison
from mpelu.lab.compare.costs import ROUNDS
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, listed
from mpelu.lab.sweep import runner
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.runner import Event
from mpelu.lab.sweep.study import TUNING_SEED, Job, Options, Setting, Study
from mpelu.lab.tables import Cell, Result

VALIDATION = 0.1
"""Share of the training images to search on, where the config names none."""

Score = tuple[float, float]
"""Validation error and loss at the end; both are infinite for a run that diverged."""
DIVERGED: Score = (math.inf, math.inf)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rate:
    """The learning rate that was found for an arm."""

    value: float
    tried: tuple[float, ...]
    """All rates, increasing."""
    error: float
    """Validation error in %; infinite if the run diverged."""

    @property
    def is_at_edge(self) -> bool:
        """Whether a rate beyond those tried may be better."""
        return self.value in (self.tried[0], self.tried[-1])

    def describe(self) -> str:
        """The rate, its error and what was tried."""
        error = f"validation error {self.error:.2f} %" if self.error < math.inf else "diverged"
        count, low, high = len(self.tried), self.tried[0], self.tried[-1]
        edge = ""
        if self.is_at_edge:
            side = "smaller" if self.value == low else "larger"
            edge = f"; it is at the edge, so a {side} rate may be better"
        return f"{self.value:g} ({error}; {count} rates from {low:g} to {high:g} tried{edge})"


def next_places(scores: Mapping[int, Score]) -> tuple[int, ...]:
    """The rates to try next; none at the end of the search.

    Args:
        scores: of the rates that were tried. Place n stands for 2^n times the first rate.

    Example:
        >>> next_places({})
        (-2, 0, 2)
        >>> next_places({-2: (9.0, 0.3), 0: (8.0, 0.2), 2: (5.0, 0.1)})
        (4,)
        >>> next_places({-2: (9.0, 0.3), 0: (5.0, 0.1), 2: (8.0, 0.2)})
        (-1, 1)
    """
    if not scores:
        return (-2, 0, 2)
    if any(place % 2 for place in scores):  # the last round
        return ()
    best = best_place(scores)
    if len(scores) < sum(ROUNDS[:-1]):
        if best == min(scores):
            return (best - 2,)
        if best == max(scores):
            return (best + 2,)
    return (best - 1, best + 1)


def best_place(scores: Mapping[int, Score]) -> int:
    """The rate of the lowest validation error, then the lowest loss, then the smallest."""
    return min(scores, key=lambda place: (scores[place], place))


def search(
    comparison: ModelComparison, options: Options, show: Callable[[Event], None]
) -> dict[str, Rate]:
    """The learning rate of each arm, by its name.

    Its runs are shorter than those of the comparison, have a seed of their own, and are chosen by
    validation images. Runs that have ended are not repeated.

    Args:
        comparison: what is compared.
        options: where and how.
        show: receives what happens, as it happens.

    Raises:
        UserError: if a run fails. One that diverges is the worst.
    """
    start = comparison.config.lr
    scores: dict[Arm, dict[int, Score]] = {arm: {} for arm in comparison.arms}
    once = replace(comparison.options(options), seeds=1)
    while any(planned := [next_places(found) for found in scores.values()]):
        places = zip(scores.items(), planned, strict=True)
        pairs = [(arm, place) for (arm, found), new in places for place in (*found, *new)]
        study = _study(comparison, pairs, scores)
        with contextlib.closing(runner.run([study], once)) as events:
            for event in events:
                if event.result is None:
                    show(event)
    return {
        arm.name: Rate(
            value=start * 2.0 ** best_place(found),
            tried=tuple(start * 2.0**place for place in sorted(found)),
            error=found[best_place(found)][0],
        )
        for arm, found in scores.items()
    }


def _study(
    comparison: ModelComparison,
    pairs: Sequence[tuple[Arm, int]],
    scores: dict[Arm, dict[int, Score]],
) -> Study:
    """Trains each arm with the rate at each place, and enters their scores."""
    config = search_config(comparison)
    settings = []
    for arm, place in pairs:
        rate = comparison.config.lr * 2.0**place
        settings.append(
            Setting(
                name=f"{arm.name}-lr{rate:g}",
                labels=(arm.title, f"{rate:g}"),
                config=replace(arm.config(config), lr=rate),
            )
        )

    def summarize(gathered: Gathered) -> Result:
        for (arm, place), row in zip(pairs, gathered.rows, strict=True):
            if not row.ended:  # it failed; other folders may be those of later rounds
                name = f"{row.name}-seed{TUNING_SEED}: "
                reasons = [each for each in gathered.left_out if name in each]
                raise UserError(
                    f"the learning rate of {arm.title} can't be found: {listed(reasons)}",
                    field="lr",
                )
            scores[arm][place] = _score(row.ended[0])
        return _table(comparison, gathered, scores)

    return Study(
        name="rates",
        title=f"Learning rates of {config.model} on {config.data}",
        needs=config.data,
        labels=("activation", "learning rate"),
        settings=lambda source: settings,
        first_seed=TUNING_SEED,
        summarize=summarize,
    )


def search_config(comparison: ModelComparison) -> Config:
    """The config of the runs that choose a learning rate, but for the activation and the rate."""
    config, steps = comparison.config, comparison.search_steps
    assert config.iterations is not None
    validation = config.validation
    if not validation and not comparison.has_validation:
        validation = VALIDATION
    return replace(
        config,
        iterations=steps,
        warmup=round(config.warmup * steps / config.iterations),
        test_every=steps,
        log_every=max(1, steps // 10),
        validation=validation,
    )


def _score(ended: Job) -> Score:
    last = {} if ended.diverged else ended.run.tests[-1]
    error, loss = (last.get(f"validation_{name}", math.inf) for name in ("error", "loss"))
    return (error, loss) if is_number(error) and is_number(loss) else DIVERGED


def _table(
    comparison: ModelComparison, gathered: Gathered, scores: Mapping[Arm, Mapping[int, Score]]
) -> Result:
    rows = []
    for arm, found in scores.items():
        for place, (error, loss) in sorted(found.items()):
            rate = comparison.config.lr * 2.0**place
            ended = error < math.inf
            rows.append((
                Cell(arm.title),
                Cell(f"{rate:g}", rate),
                Cell(f"{error:.2f}", error) if ended else Cell("diverged"),
                Cell(f"{loss:.4g}", loss) if ended else Cell(""),
                Cell("best" if place == best_place(found) else ""),
            ))  # fmt: skip
    return gathered.result(
        header=("activation", "learning rate", "validation error %", "validation loss", ""),
        rows=tuple(rows),
        notes=(
            f"every run: {comparison.search_steps} steps with a seed that no run of the comparison "
            "has; the lowest validation error counts, then the lowest loss",
        ),
    )
