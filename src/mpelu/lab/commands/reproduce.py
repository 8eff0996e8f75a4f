"""`mpelu reproduce`: runs the studies of the paper again."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import Any

from mpelu.lab.errors import flag
from mpelu.lab.sweep.study import FOR_RAY, OUT, Options

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and SIGTERM."""
_FIELDS = {each.name: each for each in fields(Options)}
EXAMPLES = """\
examples:
  mpelu reproduce table9 --scale smoke
  mpelu reproduce all --scale full --data-dir ~/data --dry-run"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Run tables and figures of the paper, and compare with its values.\n\n"
        "Run the same command again after an interruption: finished runs aren't\n"
        "repeated, and interrupted ones continue."
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="a study: table1 ... table12, figure1 ... "
        "figure5, convergence, lsuv, or package.module:factory; all: everything of the paper; "
        "`mpelu list` describes them"
    )  # fmt: skip
    for name in ("scale", "seeds", "follow", "data_dir"):
        _add(parser, name)
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help=f"output directory (default: {OUT})"
    )
    parser.add_argument("--quiet", action="store_true", help="print only results and failed runs")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs with estimated times, and exit"
    )
    add_execution(parser, "one per core at small scale, otherwise 1")


def add_execution(parser: argparse.ArgumentParser, jobs: str) -> None:
    """Adds the options that say where runs are executed.

    Args:
        parser: the command's parser.
        jobs: how many run at a time by default, in words.
    """
    ray = parser.add_argument_group("options of --executor ray")
    _add(parser, "executor")
    _add(parser, "jobs", f" (default: {jobs})")
    for name in FOR_RAY:
        _add(ray, name)


def _add(parser: Any, name: str, more: str = "") -> None:
    """Adds the option of a field of Options."""
    how = {key: value for key, value in _FIELDS[name].metadata.items() if value is not None}
    how["help"] += more
    parser.add_argument(flag(name), default=_FIELDS[name].default, **how)


def options_of(arguments: argparse.Namespace, **changes: Any) -> Options:
    """What those options describe, but for these fields."""
    given = {name: value for name, value in vars(arguments).items() if name in _FIELDS}
    return Options(**{**given, "progress": not arguments.quiet, **changes})


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab import paper, tables
    from mpelu.lab.reporting import write_report
    from mpelu.lab.sweep import estimate, runner

    names = paper.names() if "all" in arguments.names else arguments.names
    chosen = [paper.find(name) for name in dict.fromkeys(names)]
    options = options_of(arguments)
    if arguments.dry_run:
        for line in estimate.dry_run(chosen, options):
            print(line, flush=True)
        return 0
    code = 0
    events = runner.run(chosen, options)
    with terminable() as stopped, contextlib.closing(events):
        for event in events:
            if event.result is not None:
                tables.show(event.result)
            if event.is_problem or not arguments.quiet:
                print(event.text, flush=True)
            code = max(code, int(event.is_problem))
    if stopped:
        return stopped[0]
    found = sorted(each.parent for each in options.out.glob("*/result.json"))
    written = write_report(found, options.out)
    if not arguments.quiet:
        print(written.page)
    return code


class _Terminated(KeyboardInterrupt):
    """SIGTERM. As after Ctrl-C, no process may be left behind."""


@contextlib.contextmanager
def terminable() -> Iterator[list[int]]:
    """Ends with a word at Ctrl-C and at SIGTERM; then the list has the exit code."""
    is_main = threading.current_thread() is threading.main_thread()
    stopped: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, stop) if is_main else None
    try:
        yield stopped
    except KeyboardInterrupt as error:
        print("interrupted; run the same command again to continue", flush=True)
        stopped.append(TERMINATED if isinstance(error, _Terminated) else INTERRUPTED)
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before)
