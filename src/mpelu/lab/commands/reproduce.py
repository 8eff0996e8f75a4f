"""`mpelu reproduce`: runs the studies of the paper again."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from mpelu.lab.commands.output import console
from mpelu.lab.sweep.study import EXECUTORS, OUT, SCALES, SOURCES, Execution, Options

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
    parser.add_argument(
        "--scale", choices=SCALES, default="small",
        help="full: the paper's setting; small: at most half an hour per table or figure "
        "of the paper on two cores; "
        "smoke: a few steps to check that everything runs (default: small)",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=int, metavar="N", help="runs per setting (default: chosen by the study)"
    )
    parser.add_argument(
        "--follow", choices=SOURCES, help="the source to follow where the paper and its published "
        "code disagree (default: chosen by the study)",
    )  # fmt: skip
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where the data is, or where to download it"
    )
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
        parser: of the command.
        jobs: how many run at a time by default, in words.
    """
    parser.add_argument(
        "--executor", choices=EXECUTORS, default="local",
        help="local: processes on this machine; ray: a Ray cluster (default: local)",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, metavar="N",
        help=f"runs at a time (default: {jobs})",
    )  # fmt: skip
    ray = parser.add_argument_group("options of --executor ray")
    ray.add_argument(
        "--ray-address", metavar="ADDRESS", help="a running cluster (default: start one here)"
    )
    ray.add_argument(
        "--cpus-per-run", type=float, default=1.0, metavar="X", help="CPUs per run (default: 1)"
    )
    ray.add_argument(
        "--gpus-per-run", type=float, default=0.0, metavar="X", help="GPUs per run (default: 0)"
    )


def execution_of(arguments: argparse.Namespace, **changes: Any) -> Execution:
    """What those options say, with some of it changed."""
    given = {
        "out": arguments.out,
        "executor": arguments.executor,
        "jobs": arguments.jobs,
        "ray_address": arguments.ray_address,
        "cpus_per_run": arguments.cpus_per_run,
        "gpus_per_run": arguments.gpus_per_run,
        "progress": not arguments.quiet,
    }
    return Execution(**{**given, **changes})


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab import paper
    from mpelu.lab.sweep import estimate, results, runner

    names = paper.names() if "all" in arguments.names else arguments.names
    chosen = [paper.find(name) for name in dict.fromkeys(names)]
    options = Options(
        scale=arguments.scale,
        seeds=arguments.seeds,
        follow=arguments.follow,
        data_dir=arguments.data_dir,
    )
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
