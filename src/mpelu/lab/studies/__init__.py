"""Every table and figure of the paper as a recipe: what to run, and what the paper says.

Example:
    >>> from mpelu.lab import studies as recipes
    >>> recipes.find("table9").title
    'ReLU, ELU and MPELU in residual networks on CIFAR-10'
"""

from __future__ import annotations

from functools import cache
from importlib import import_module

from mpelu.lab.errors import choose
from mpelu.lab.studies.recipe import NamedRun, Options, Recipe

_FILES = {
    **{f"table{number}": f"table{number:02}" for number in range(1, 13)},
    **{f"figure{number}": f"figure{number}" for number in range(1, 6)},
    "convergence": "convergence",
    "lsuv": "lsuv",
}

__all__ = ["NamedRun", "Options", "Recipe", "find", "names"]


def names() -> list[str]:
    """Of all recipes: tables and figures by their number in the paper, then claims in the text."""
    return list(_FILES)


@cache
def find(name: str) -> Recipe:
    """The recipe of a name; UserError with the closest name if there is none."""
    choose("recipe", name, _FILES)
    module = import_module(f"mpelu.lab.studies.paper.{_FILES[name]}")
    recipe = module.RECIPE
    assert isinstance(recipe, Recipe)
    return recipe
