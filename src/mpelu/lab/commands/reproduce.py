"""`mpelu reproduce`: runs the studies of the paper again."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import Field, fields
from pathlib import Path
from types import FrameType
from typing import Any

from mpelu.lab.commands.output import console
from mpelu.lab.sweep.study import FOR_RAY, OUT, Execution, Options

INTERRUPTED, TERMINATED = 130, 143
"""Exit codes after Ctrl-C and SIGTERM."""
_EXAMPLES = """\
examples:
  mpelu reproduce table9 --scale smoke
  mpelu reproduce all --scale full --data-dir ~/data --dry-run"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        description="Run tables and figures of the paper, and compare with its values.\n\n"
        "Run the same command again after an interruption: finished runs aren't\n"
        "repeated, and interrupted ones continue.",
        epilog=_EXAMPLES,
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="a study: table1 ... table12, figure1 ... "
        "figure5, convergence, lsuv, or package.module:factory; all: everything of the paper; "
        "`mpelu list` describes them"
    )  # fmt: skip
    for each in fields(Options):
        _add(parser, each)
    parser.add_argument(
        "--out", type=Path, default=OUT, metavar="DIR", help=f"output directory (default: {OUT})"
    )
    parser.add_argument("--quiet", action="store_true", help="print only results and failed runs")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs with estimated times, and exit"
    )
    add_execution(parser, "one per core at small scale, otherwise 1")
    parser.set_defaults(run=run)


def add_execution(parser: argparse.ArgumentParser, jobs: str) -> None:
    """Adds the options that say where runs are executed.

    Args:
        parser: the command's parser.
        jobs: how many run at a time by default, in words.
    """
    ray = parser.add_argument_group("options of --executor ray")
    for each in fields(Execution):
        if each.metadata:
            more = f" (default: {jobs})" if each.name == "jobs" else ""
            _add(ray if each.name in FOR_RAY else parser, each, more)


def _add(parser: Any, field: Field[Any], more: str = "") -> None:
    """Adds the option of a field."""
    how = {name: value for name, value in field.metadata.items() if value is not None}
    how["help"] += more
    parser.add_argument(f"--{field.name.replace('_', '-')}", default=field.default, **how)


def execution_of(arguments: argparse.Namespace, **changes: Any) -> Execution:
    """The execution that those options describe.

    Args:
        arguments: what was given.
        **changes: fields that have other values.
    """
    given = {
        each.name: getattr(arguments, each.name) for each in fields(Execution) if each.metadata
    }
    given |= {"out": arguments.out, "progress": not arguments.quiet}
    return Execution(**{**given, **changes})


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab import paper
    from mpelu.lab.reporting import write_report
    from mpelu.lab.sweep import estimate, results, runner

    names = paper.names() if "all" in arguments.names else arguments.names
    chosen = [paper.find(name) for name in dict.fromkeys(names)]
    options = Options(**{each.name: getattr(arguments, each.name) for each in fields(Options)})
    execution = execution_of(arguments)
    if arguments.dry_run:
        for line in estimate.dry_run(chosen, options, execution.jobs_at(options.scale)):
            print(line, flush=True)
        return 0
    code = 0
    events = runner.run(chosen, options, execution)
    try:
        with terminable(), contextlib.closing(events):
            for event in events:
                if event.result is not None:
                    results.show(event.result, console())
                if event.is_problem or not arguments.quiet:
                    print(event.text, flush=True)
                code = max(code, int(event.is_problem))
    except KeyboardInterrupt as error:
        print("interrupted; run the same command again to continue", flush=True)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    found = sorted(each.parent for each in execution.out.glob("*/result.json"))
    written = write_report(found, execution.out)
    if not arguments.quiet:
        print(written.page)
    return code


class Terminated(KeyboardInterrupt):
    """SIGTERM. As after Ctrl-C, no process may be left behind."""


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """Raises Terminated on SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
