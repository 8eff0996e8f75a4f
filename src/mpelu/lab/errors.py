"""What the command answers to bad input."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class UserError(Exception):
    """One line that says what was expected and what came; the command ends with exit code 2."""


def choose(what: str, value: str, allowed: Iterable[str]) -> None:
    """Raises UserError unless the value is one of the allowed names; names the closest."""
    names = list(allowed)
    if value in names:
        return
    closest = get_close_matches(value, names, n=1, cutoff=0.0)[0]
    raise UserError(
        f"{what}: expected one of {', '.join(names)}; got {value!r} (closest: {closest!r})"
    )
