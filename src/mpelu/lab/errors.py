"""Errors that are the user's to fix, told in one line."""

from __future__ import annotations

from collections.abc import Iterable

_LISTED = 8
"""Up to this many choices are listed in full."""


_SYNONYMS = {"gpu": "cuda"}
"""Names that people use for something else than what is spelled like them."""


class UserError(ValueError):
    """Bad input, a missing file, a full disk: one line that says what was expected and what came.

    The command line prints it and exits with code 2.

    Args:
        message: the line, without the name of the field.
        field: the argument or Config field at fault, if it is one. It starts the text: as
            ``batch_size:`` in Python and as ``--batch-size:`` on the command line.

    Example:
        >>> error = UserError("expected a number >= 1, got 0", field="batch_size")
        >>> str(error)
        'batch_size: expected a number >= 1, got 0'
        >>> error.on_command_line()
        '--batch-size: expected a number >= 1, got 0'
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.message = message
        self.field = field

    def on_command_line(self) -> str:
        """The text with the flag in place of the field."""
        return f"{flag(self.field)}: {self.message}" if self.field else self.message


def flag(field: str) -> str:
    """The command-line flag of a field: ``--batch-size`` for ``batch_size``."""
    return f"--{field.replace('_', '-')}"


def choose(
    field: str, value: str, allowed: Iterable[str], *, noun: str = "", hint: str = ""
) -> None:
    """Raises UserError unless the value is one of the allowed names.

    Args:
        field: the argument that was given.
        value: what was given for it.
        allowed: all valid names.
        noun: what the names are names of.
        hint: added in parentheses, for example where to find all names.

    Example:
        >>> choose("augment", "mirror", ["none", "crop-flip"])
        Traceback (most recent call last):
        mpelu.lab.errors.UserError: augment: unknown value 'mirror'; choose none or crop-flip
    """
    names = list(allowed)
    if value in names:
        return
    message = f"unknown {noun or 'value'} {value!r}"
    close = closest(value, names)
    if close:
        message += f"; did you mean {close!r}?"
    if not names:
        message += "; there is none"
    elif len(names) <= _LISTED:
        message += f"{'' if close else ';'} {'C' if close else 'c'}hoose {listed(names)}"
    raise UserError(f"{message} ({hint})" if hint else message, field=field)


def closest(value: str, names: Iterable[str]) -> str | None:
    """The name that was probably meant, if one is close.

    Example:
        >>> closest("resnet-2O", ["resnet-20", "resnet-110"])
        'resnet-20'
        >>> closest("MPELU", ["relu", "mpelu"]), closest("gpu", ["cpu", "cuda"])
        ('mpelu', 'cuda')
    """
    from difflib import get_close_matches  # slow to import, and rarely needed

    plain = {name.lower(): name for name in names}
    meant = _SYNONYMS.get(value.lower())
    found = [meant] if meant in plain else get_close_matches(value.lower(), plain, n=1)
    return plain[found[0]] if found else None


def listed(names: Iterable[str], conjunction: str = "or") -> str:
    """Names as a native speaker lists them.

    Example:
        >>> listed(["a", "b", "c"])
        'a, b or c'
    """
    *others, last = names
    return f"{', '.join(others)} {conjunction} {last}" if others else last


def plural(count: int, noun: str) -> str:
    """The count with its noun in the right form.

    Example:
        >>> plural(1, "epoch"), plural(1437, "image"), plural(2, "process")
        ('1 epoch', '1,437 images', '2 processes')
    """
    ending = "" if count == 1 else "es" if noun.endswith("s") else "s"
    return f"{count:,} {noun}{ending}"


def one_line(error: BaseException) -> str:
    """The first line of an error's text, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
