"""Command-line options out of the fields of Config."""

from __future__ import annotations

import argparse
import json
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, Field, fields
from typing import Any

from mpelu.lab.config import FIELDS, TYPES, Config

NAMES = tuple(each.name for each in fields(Config))


def add_config(parser: argparse._ActionsContainer, names: Iterable[str] = NAMES) -> None:
    """Adds an option for each of the fields; those not given leave no trace in the namespace."""
    chosen = set(names)
    for each in fields(Config):
        if each.name in chosen:
            _add(parser, each)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given."""
    values = {name: value for name, value in vars(arguments).items() if name in NAMES}
    if "model_options" in values:
        values["model_options"] = dict(values["model_options"])
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


def _add(parser: argparse._ActionsContainer, each: Field[Any]) -> None:
    hint, info = TYPES[each.name], FIELDS[each.name]
    choices = info.choices
    default = {} if each.default is MISSING else each.default
    text = info.help.replace("%", "%%")
    if choices is not None and not all(choice in text for choice in choices):
        text += f": {', '.join(choices)}"
    settings: dict[str, Any] = {
        "dest": each.name,
        "default": argparse.SUPPRESS,
        "help": f"{text} [{_shown(default, info.unset)}]",
    }
    flag = f"--{each.name.replace('_', '-')}"
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(kind for kind in kinds if kind is not type(None))
    if kind is bool:
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, **settings)
    elif typing.get_origin(kind) is tuple:
        number = typing.get_args(kind)[0]
        parser.add_argument(flag, nargs="*", type=number, metavar="N", **settings)
    elif typing.get_origin(kind) is dict:
        parser.add_argument(flag, nargs="*", type=_pair, metavar="NAME=VALUE", **settings)
    else:
        metavar = "DIR" if each.name == "data_dir" else {int: "N", float: "X", str: "NAME"}[kind]
        parser.add_argument(flag, type=kind, metavar=metavar, **settings)


def _shown(default: Any, unset: str) -> str:
    if default is None or default in ((), {}):
        return unset
    if isinstance(default, bool):
        return "yes" if default else "no"
    return str(default)


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
