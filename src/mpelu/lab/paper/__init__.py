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
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpelu.lab import references
from mpelu.lab.errors import UserError, choose
from mpelu.lab.sweep.study import Options, Study

if TYPE_CHECKING:
    from mpelu.lab.tables import Result

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


def reproduce(studies: str | Iterable[str], **options: Any) -> list[Result]:
    """Runs studies and returns their results, as `mpelu reproduce` does.

    Runs that finished in an earlier call aren't repeated, and interrupted ones continue. Progress
    is logged to the logger "mpelu.lab.reproduce": failed runs as warnings, all else as information.

    Args:
        studies: name or names of studies.
        **options: fields of `mpelu.lab.sweep.Options`, such as scale="smoke", data_dir="data",
            out="results" or jobs=2.

    Raises:
        UserError: for unknown names or values, missing data, a full disk, or if a study has no
            run that ended.
    """
    from mpelu.lab.sweep import runner

    chosen = [find(name) for name in ([studies] if isinstance(studies, str) else studies)]
    results = []
    for event in runner.run(chosen, Options(**options)):
        _LOG.log(logging.WARNING if event.is_problem else logging.INFO, event.text)
        if event.result is not None:
            results.append(event.result)
    return results
