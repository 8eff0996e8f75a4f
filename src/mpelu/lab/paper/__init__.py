"""Every table, figure and claim of the paper as a study.

Example:
    >>> from mpelu.lab import paper
    >>> paper.find("table9").title
    'ReLU, ELU and MPELU in residual networks on CIFAR-10'
    >>> (result,) = paper.reproduce("table7", scale="smoke", out="out")  # doctest: +SKIP
    >>> result.rows[0][3].value  # doctest: +SKIP
    47.48
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from mpelu.lab import references
from mpelu.lab.errors import UserError, choose
from mpelu.lab.sweep.study import OUT, Execution, Options, Study

if TYPE_CHECKING:
    from mpelu.lab.sweep.results import Result

__all__ = ["find", "names", "reproduce"]

_HOMES = {
    **{f"table{number}": (f"table{number:02}", "STUDY") for number in range(1, 13)},
    **{f"figure{number}": (f"figure{number}", "STUDY") for number in range(1, 4)},
    "figure4": ("blocks", "FIGURE4"),
    "figure5": ("blocks", "FIGURE5"),
    "convergence": ("convergence", "CONVERGENCE"),
    "lsuv": ("convergence", "LSUV_STUDY"),
}
"""The module of each study, and its name there."""
_LOG = logging.getLogger("mpelu.lab.reproduce")


def names() -> list[str]:
    """The names of the paper's tables, figures and claims."""
    return list(_HOMES)


def find(name: str) -> Study:
    """The study of a name, or the one that ``package.module:factory`` returns.

    Raises:
        UserError: if there is no such study.
    """
    if references.is_reference(name):
        made = references.call("", name)
        if not isinstance(made, Study):
            raise UserError(f"{name}: expected a Study, got {type(made).__name__}")
        return made
    choose("", name, _HOMES, noun="study", hint="`mpelu list` lists all studies")
    return _built_in(name)


@cache
def _built_in(name: str) -> Study:
    module, attribute = _HOMES[name]
    study = getattr(import_module(f"{__name__}.{module}"), attribute)
    assert isinstance(study, Study)
    return study


def reproduce(
    studies: str | Iterable[str],
    *,
    scale: str = "small",
    seeds: int | None = None,
    follow: str | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = OUT,
    executor: str = "local",
    jobs: int | None = None,
    ray_address: str | None = None,
    cpus_per_run: float = 1.0,
    gpus_per_run: float = 0.0,
    progress: bool = False,
) -> list[Result]:
    """Runs studies and returns their results, as `mpelu reproduce` does.

    Runs that finished in an earlier call aren't repeated, and interrupted ones continue. Progress
    is logged to the logger "mpelu.lab.reproduce": failed runs as warnings, all else as information.

    Args:
        studies: name or names of studies.
        scale: "smoke", "small" or "full".
        seeds: runs per setting; None for the study's default.
        follow: "paper" or "code", where the two disagree; None for the study's default.
        data_dir: where the data is, or where to download it.
        out: directory of the results.
        executor: "local" or "ray".
        jobs: runs at a time; None for one per core at small scale, and otherwise one.
        ray_address: a running Ray cluster; None to start one on this machine.
        cpus_per_run: CPUs per run on a Ray cluster.
        gpus_per_run: GPUs per run on a Ray cluster.
        progress: print the progress of downloads and, where there is one run at a time, of runs.

    Raises:
        UserError: for unknown names or options, missing data, a full disk, or if a study has no
            run that ended.
    """
    from mpelu.lab.sweep import runner

    chosen = [find(name) for name in ([studies] if isinstance(studies, str) else studies)]
    where = None if data_dir is None else os.fspath(data_dir)
    options = Options(scale=scale, seeds=seeds, follow=follow, data_dir=where)
    execution = Execution(
        out=Path(out),
        executor=executor,
        jobs=jobs,
        ray_address=ray_address,
        cpus_per_run=cpus_per_run,
        gpus_per_run=gpus_per_run,
        progress=progress,
    )
    results = []
    for event in runner.run(chosen, options, execution):
        _LOG.log(logging.WARNING if event.is_problem else logging.INFO, event.text)
        if event.result is not None:
            results.append(event.result)
    return results
