"""The `mpelu` command: finds the subcommand, runs it, and reports every error in one line.

`main` imports the module of the chosen subcommand only, and that module imports torch only when it
runs, so help is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from mpelu.lab.errors import UserError, choose, closest, flag, one_line

COMMANDS = {
    "train": "train a network, or resume a run",
    "eval": "measure the test error of a trained network",
    "predict": "classify images with a trained network",
    "inspect": "show signal, gradients, alpha and beta layer by layer",
    "doctor": "say why a network doesn't train",
    "compare": "find out which activation suits your model",
    "list": "list studies, models, presets or activations",
    "reproduce": "reproduce tables and figures of the paper",
    "verify": "find damaged files in run folders",
    "report": "write an HTML report of runs and studies",
    "explore": "explore MPELU's alpha and beta in the browser",
    "models": "list the networks and their sizes",
}
"""What each subcommand does. Its module in `mpelu.lab.commands` has the same name."""

LAB_PACKAGES = ("PIL", "filelock", "matplotlib", "numpy", "rich", "safetensors")
"""The packages of mpelu[lab], by the names they are imported under."""

_DESCRIPTION = "Train, inspect and reproduce the networks of the MPELU paper.\n\ncommands:\n"
_DESCRIPTION += "\n".join(f"  {name:<11}{summary}" for name, summary in COMMANDS.items())
_EXAMPLES = """\
examples:
  mpelu train --model resnet-20 --activation mpelu --epochs 5 --out runs/first
  mpelu eval runs/first
  mpelu reproduce table9 --scale smoke

Run "mpelu COMMAND --help" for the options of a command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: those of the process by default.

    Returns:
        The exit code.

    Raises:
        SystemExit: with code 2 after an error and 130 after Ctrl-C; the error has been printed.
    """
    handler = _catch_interrupt()
    _prepare_output()
    code = 1
    try:
        code = _run(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        _exit("interrupted", 130)
    except UserError as error:
        _exit(f"error: {error.on_command_line()}")
    except BrokenPipeError as error:
        if _flush():  # then it was another pipe
            _exit(f"error: {one_line(error)}")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _exit(f"error: {where}{error.strerror or one_line(error)}")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "to allocate" not in str(error):  # torch's words
            raise
        _exit(f"error: out of memory: {one_line(error)}")
    finally:
        _flush()
        if handler is not None:
            signal.signal(signal.SIGINT, handler)
    return code


def _run(arguments: Sequence[str]) -> int:
    """Parses the arguments and runs the subcommand.

    Raises:
        UserError: for arguments that don't fit, and from the subcommand.
    """
    from importlib import import_module

    from mpelu import __version__

    parser = Parser(
        prog="mpelu",
        usage="mpelu [-h] [--version] COMMAND ...",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"mpelu {__version__}")
    name = next((each for each in arguments if not each.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        if arguments[0].startswith("-"):
            raise _option_first(arguments)
        close = closest(name, COMMANDS)
        hint = f"; did you mean {close!r}?" if close else " (see mpelu --help)"
        raise UserError(f"unknown command {name!r}{hint}")
    command = parser
    if name is not None:
        module, summary = import_module(f"mpelu.lab.commands.{name}"), COMMANDS[name]
        command = parser.add_subparsers(prog="mpelu", help=argparse.SUPPRESS).add_parser(
            name, description=f"{summary[0].upper()}{summary[1:]}.", epilog=module.EXAMPLES
        )
        command.set_defaults(run=module.run)
        module.add(command)
    chosen, unknown = parser.parse_known_args(arguments)
    if unknown:
        command.refuse(unknown)
    if name is None:
        parser.print_help()
        return 0
    _check_packages()
    try:
        return chosen.run(chosen) or 0
    except UserError as error:
        if error.field is None or command.has_option(error.field):
            raise
        raise UserError(str(error)) from error  # a field that was read from a file


def _option_first(arguments: Sequence[str]) -> UserError:
    """What to say about an option before the command."""
    from mpelu.lab.config import FIELDS

    option = arguments[0].partition("=")[0]
    hint = " (see mpelu --help)"
    if option in map(flag, FIELDS):
        others = [each for each in arguments if each not in COMMANDS]
        command = next((each for each in arguments if each in COMMANDS), "train")
        hint = f"; did you mean mpelu {command} {' '.join(others)}?"
    return UserError(f"unknown option {option} before the command{hint}")


def _check_packages() -> None:
    """Raises UserError if a package that some command needs isn't installed."""
    from importlib.util import find_spec

    if any(find_spec(package) is None for package in LAB_PACKAGES):
        raise UserError(
            "the command line needs more packages; install them in the directory of mpelu with: "
            'pip install ".[lab]"'
        )


def _exit(message: str, code: int = 2) -> NoReturn:
    with contextlib.suppress(OSError):  # nobody reads it; the code still tells
        print(f"mpelu: {message}", file=sys.stderr)
    raise SystemExit(code)


def _prepare_output() -> None:
    """Makes printing safe: there are streams, and characters that can't be encoded become "?"."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (open until the end)
    if hasattr(sys.stdout, "reconfigure"):  # standard error never raises
        sys.stdout.reconfigure(errors="replace")


def _flush() -> bool:
    """Writes what was printed; if nobody reads it or the disk is full, drops it."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


def _catch_interrupt() -> Callable[[int, FrameType | None], object] | None:
    """Makes Ctrl-C safe during imports; returns the handler to put back."""
    handler = signal.default_int_handler
    if signal.getsignal(signal.SIGINT) is not handler:
        return None  # ignored, or handled by the program that called main
    try:
        signal.signal(signal.SIGINT, _interrupt)
    except ValueError:  # not in the main thread
        return None
    return handler


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Handles SIGINT: as usual, but an import ends the process at once.

    While torch is imported, KeyboardInterrupt can be swallowed, abort the process or recurse
    without end.
    """
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            with contextlib.suppress(OSError):
                os.write(2, b"mpelu: interrupted\n")
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


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
        if action.choices is None or isinstance(action, argparse._SubParsersAction):
            super()._check_value(action, value)
            return
        try:
            choose(action.dest, value, action.choices)
        except UserError as error:
            if action.option_strings:
                raise
            raise UserError(error.message) from None  # what has no flag to name


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
