"""An argument parser whose errors read like all others."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from mpelu.lab.errors import UserError, choose, closest, flag


class Formatter(argparse.HelpFormatter):
    """Doesn't break lines at hyphens, and keeps texts that have line breaks of their own."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Raises UserError where an ArgumentParser would print its usage and exit.

    Options can't be abbreviated: a new option would make old abbreviations ambiguous.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, "formatter_class": Formatter, **settings})
        self.register("type", int, _reader(int, "an integer"))
        self.register("type", float, _reader(float, "a number"))
        self.register("type", Path, _path)

    def has_option(self, field: str) -> bool:
        """Whether there is a flag for the field."""
        return flag(field) in self._option_string_actions

    def refuse(self, unknown: list[str]) -> NoReturn:
        """Raises UserError for arguments that the parser doesn't know."""
        for argument in unknown:
            if argument.startswith("-"):
                name = argument.partition("=")[0]
                options = {each.lstrip("-"): each for each in self._option_string_actions}
                close = closest(name.lstrip("-"), options)
                if close is not None:
                    raise UserError(f"unknown option {name}; did you mean {options[close]}?")
                self.error(f"unknown option {name}")
        self.error(f"unexpected argument {unknown[0]!r}")

    def error(self, message: str) -> NoReturn:
        about_option = message.startswith("argument ")  # and then it begins with the flag
        raise UserError(
            message.removeprefix("argument ")
            if about_option
            else f"{message} (see {self.prog} --help)"
        )

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.option_strings and action.choices is not None:
            choose(action.dest, value, action.choices)
        else:
            super()._check_value(action, value)


def _path(text: str) -> Path:
    if not text:  # which Path takes for the current directory
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return Path(text)


def _reader(kind: Callable[[str], Any], noun: str) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"expected {noun}, got {text!r}") from None

    return read
