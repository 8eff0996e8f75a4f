"""The file that keeps a study's runs. Its table, figures and text are made from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.errors import UserError
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.statistics import Pairing, pair_seeds
from mpelu.lab.sweep.study import Job

KEPT = "kept.json"
"""Name of the file, which is written beside result.json."""
FORMAT = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRun:
    """A run that ended."""

    setting: str
    seed: int
    test_error: float | None
    """In %, after the last step; None if the run diverged."""
    tests: list[tuple[int, float]]
    """Step and test error in % of every test."""
    learned: dict[str, tuple[float, float, float]]
    """Mean, smallest and largest value over the channels of each learned parameter of activations
    at the end, in the order of the network."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptStudy:
    """A study with its runs."""

    study: str
    title: str
    labels: dict[str, str]
    """Label of each setting, in order."""
    configs: dict[str, dict[str, Any]]
    """Fields of each setting that differ from Config's defaults, without the seed."""
    comparisons: list[tuple[str, str]]
    runs: list[KeptRun]
    machines: list[dict[str, Any]]
    """Every machine and revision that runs came from."""

    def errors(self, setting: str) -> dict[int, float]:
        """The test error in % of each seed that finished."""
        return {
            run.seed: run.test_error
            for run in self.runs
            if run.setting == setting and run.test_error is not None
        }

    def diverged(self, setting: str) -> int:
        """Number of runs that diverged."""
        return sum(run.setting == setting and run.test_error is None for run in self.runs)

    def difference(self, setting: str) -> Pairing | None:
        """To the setting it is compared with; None without one, or without a seed in common."""
        others = [second for first, second in self.comparisons if first == setting]
        if not others:
            return None
        found = self.pairing(setting, others[0], len(self.comparisons))
        return found if found.pairs else None

    def pairing(self, first: str, second: str, comparisons: int) -> Pairing:
        """Two settings over the seeds that both have."""
        ones, twos = (
            {run.seed: run.test_error for run in self.runs if run.setting == name}
            for name in (first, second)
        )
        return pair_seeds(ones, twos, comparisons=comparisons)


def steps_to(run: KeptRun, error: float) -> int | None:
    """The first tested step with at most this test error in %."""
    return next((step for step, found in run.tests if found <= error), None)


def keep(gathered: Gathered) -> KeptStudy:
    """What is kept of the runs that were gathered."""
    study = gathered.study
    settings = {row.name: row for row in gathered.rows}
    configs = {
        name: each.config.non_defaults()
        for name, each in settings.items()
        if each.config is not None
    }
    for values in configs.values():
        values.pop("data_dir", None)
    machines: list[dict[str, Any]] = []
    for each in gathered.ended():
        machine = {name: each.run.environment.get(name) for name in _MACHINE}
        if machine not in machines:
            machines.append(machine)
    return KeptStudy(
        study=study.name,
        title=study.title,
        labels={name: ", ".join(each.labels) for name, each in settings.items()},
        configs=configs,
        comparisons=list(study.comparisons),
        runs=[_keep(each) for each in gathered.ended()],
        machines=machines,
    )


_MACHINE = ("cpu", "kernel", "torch", "mpelu", "revision", "threads")


def _keep(ended: Job) -> KeptRun:
    from mpelu.lab.inspecting import learned_parameters

    learned = learned_parameters(ended.run.path).final
    return KeptRun(
        setting=ended.setting,
        seed=ended.seed,
        test_error=None if ended.diverged else ended.run.status["test_error"],
        tests=[
            (row["step"], round(row["test_error"], 4))
            for row in ended.run.tests
            if is_number(row.get("step")) and is_number(row.get("test_error"))
        ],
        learned={
            name: tuple(round(float(each), 5) for each in (v.mean(), v.min(), v.max()))  # type: ignore[misc]
            for name, v in learned.items()
        },
    )


def write(kept: KeptStudy, path: Path) -> None:
    """Writes the file, a line per run."""
    values = asdict(kept)
    runs = [json.dumps(run) for run in values.pop("runs")]
    head = json.dumps({"format": FORMAT, **values}, indent=1, ensure_ascii=False)
    text = head.removesuffix("\n}") + ',\n "runs": [\n  ' + ",\n  ".join(runs) + "\n ]\n}\n"
    files.write(path, text, durable=False)


def read(path: Path) -> KeptStudy:
    """Reads what `write` wrote.

    Raises:
        UserError: if it is something else.
    """
    try:
        values = json.loads(path.read_text())
        if values.pop("format") != FORMAT:
            raise ValueError(f"expected format {FORMAT}")
        runs = [
            KeptRun(
                **{
                    **run,
                    "tests": [tuple(each) for each in run["tests"]],
                    "learned": {name: tuple(each) for name, each in run["learned"].items()},
                }
            )
            for run in values.pop("runs")
        ]
        comparisons = [(first, second) for first, second in values.pop("comparisons")]
        return KeptStudy(**values, runs=runs, comparisons=comparisons)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: expected the kept runs of a study: {error}") from error
