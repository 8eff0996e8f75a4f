"""Command-line options, made from the fields of Config, and those of a trained network."""

from __future__ import annotations

import argparse
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import FIELDS, TYPES, Config
from mpelu.lab.data.registry import named
from mpelu.lab.errors import flag, listed
from mpelu.lab.files import parse_json
from mpelu.lab.run.folder import WEIGHT_CHOICES

if TYPE_CHECKING:
    from mpelu.lab.training.trained import TrainedNetwork

_DEFAULTS = {each.name: each.default for each in fields(Config)}
_METAVARS = {int: "N", float: "X", str: "NAME"}


def add_config(parser: argparse._ActionsContainer, names: Iterable[str] = FIELDS) -> None:
    """Adds an option for each of the fields; those not given leave no trace in the namespace."""
    for name in names:
        _add_field(parser, name)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields that were given, by name. A directory given as --data names two of them."""
    values = {name: value for name, value in vars(arguments).items() if name in FIELDS}
    if "data" in values:
        values |= named(values["data"], values.get("data_dir"))
    if "model_options" in values:
        values["model_options"] = dict(values["model_options"])
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the argument of a command that takes any model."""
    parser.add_argument(
        "model", metavar="NAME", help="package.module:factory, or a network of `mpelu models`"
    )


def add_trained(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of every command that uses a trained network."""
    parser.add_argument("folder", type=Path, metavar="RUN", help="run folder")
    add_weights(parser, default="final")
    add_trust(parser)


def add_trust(parser: argparse._ActionsContainer) -> None:
    """Adds the option that allows a run folder's own code."""
    parser.add_argument(
        "--trust", action="store_true", help="import the code that the run folder names"
    )


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    """Adds the option for data that isn't where the run found it."""
    parser.add_argument(
        "--data-dir", metavar="DIR", default=argparse.SUPPRESS,
        help="directory the data is in (default: that of the run)",
    )  # fmt: skip


def add_weights(parser: argparse.ArgumentParser, *, default: str | None = None) -> None:
    """Adds the option that chooses among the weights of a run."""
    parser.add_argument(
        "--weights", choices=WEIGHT_CHOICES, default=default,
        help="the final weights, those with the lowest validation error (test error, if the run "
        "has no validation images), or those of the last checkpoint (default: final)",
    )  # fmt: skip


def load_trained(arguments: argparse.Namespace) -> TrainedNetwork:
    """The network that those arguments name. Warns if the run has no final weights yet."""
    from mpelu.lab.training.trained import load_network

    trained = load_network(arguments.folder, arguments.weights, trust=arguments.trust)
    if arguments.weights == "final" and trained.source.parent != arguments.folder:
        print(
            f"warning: {arguments.folder} has no final weights yet; using {trained.source}",
            file=sys.stderr,
        )
    return trained


def _add_field(parser: argparse._ActionsContainer, name: str) -> None:
    hint = TYPES[name]
    settings: dict[str, Any] = {
        "dest": name,
        "default": argparse.SUPPRESS,
        "help": f"{_described(name)} (default: {_default(name)})".replace("%", "%%"),
    }
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(kind for kind in kinds if kind is not type(None))
    if kind is bool:
        parser.add_argument(flag(name), action=argparse.BooleanOptionalAction, **settings)
    elif typing.get_origin(kind) is tuple:
        number = typing.get_args(kind)[0]
        metavar = _METAVARS[number]
        parser.add_argument(flag(name), nargs="*", type=number, metavar=metavar, **settings)
    elif typing.get_origin(kind) is dict:
        parser.add_argument(flag(name), nargs="*", type=_pair, metavar="NAME=VALUE", **settings)
    else:
        metavar = "DIR" if name.endswith("_dir") else _METAVARS[kind]
        parser.add_argument(flag(name), type=kind, metavar=metavar, **settings)


def _described(name: str) -> str:
    """The field's help, with its choices unless the help names them."""
    info = FIELDS[name]
    text = info.help
    if info.choices is not None and not all(choice in text for choice in info.choices):
        text = f"{text}: {listed(info.choices)}"
    return f"{text}, or package.module:factory" if info.extensible else text


def _default(name: str) -> str:
    default = _DEFAULTS[name]
    if isinstance(default, bool):
        return "yes" if default else "no"
    if default in (None, (), MISSING):
        return FIELDS[name].unset
    return f"{default:g}" if isinstance(default, float) else str(default)


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, parse_json(value)
    except ValueError:
        return name, value
