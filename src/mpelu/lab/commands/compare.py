"""`mpelu compare`: the same model with several activations, trained alike."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

from mpelu.lab.commands.options import add_config, add_model, given
from mpelu.lab.commands.reproduce import add_execution, options_of, terminable
from mpelu.lab.config import INIT
from mpelu.lab.errors import UserError
from mpelu.lab.optimization import SCHEDULES

_FIELDS = (
    "data_dir", "image_size", "crop", "model_options", "batch_size", "optimizer", "momentum",
    "weight_decay", "warmup", "augment", "validation", "train_limit", "test_limit", "precision",
    "device",
)  # fmt: skip
_SCHEDULES = [name for name in SCHEDULES if name != "steps"]  # there are no --milestones
EXAMPLES = """\
examples:
  mpelu compare mine:net --data digits --activations relu,mpelu --budget 5m
  mpelu compare mine:net --data photos --inits own,exact --budget '2000 steps'
  mpelu compare mine:net --data cifar10 --data-dir ~/data --budget 8h"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Train a model with several activations, and say whether they differ.\n\n"
        "Runs with the same seed have the same initial weights and batches. Run the\n"
        "same command again after an interruption: it resumes where it stopped."
    )
    add_model(parser)
    parser.add_argument(
        "--data", required=True, metavar="DATA",
        help="digits, cifar10, cifar100, a directory of images or arrays, or "
        "package.module:factory",
    )  # fmt: skip
    parser.add_argument(
        "--activations", default="own,mpelu", metavar="LIST",
        help="comma-separated names; \"own\" keeps the model's. The first is the baseline "
        "(default: own,mpelu)",
    )  # fmt: skip
    parser.add_argument(
        "--inits", default="own", metavar="LIST",
        help=f"initializations, each for every activation: {', '.join(INIT)} (default: own)",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=int, default=5, metavar="N", help="runs per activation (default: 5)"
    )
    parser.add_argument(
        "--budget", default="30m", metavar="TIME",
        help="time for everything, such as 90s, 30m or 8h, or steps per run, such as '500 steps' "
        "(default: 30m)",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output directory (default: out/compare/NAME)"
    )
    parser.add_argument("--quiet", action="store_true", help="print only the verdict")
    add_execution(parser, "one per core")
    training = parser.add_argument_group("training, the same for all")
    add_config(training, _FIELDS)
    training.add_argument(
        "--schedule", default="cosine", metavar="NAME",
        help=f"learning rate schedule: {', '.join(_SCHEDULES)} or package.module:factory "
        "(default: cosine)",
    )  # fmt: skip
    training.add_argument(
        "--lr", type=_rate, metavar="X", default=argparse.SUPPRESS,
        help="one learning rate for all activations, or auto to search for one for each on "
        "validation images (default: auto, if the budget allows)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab import tables
    from mpelu.lab.compare import comparison, rates
    from mpelu.lab.compare.costs import ROUNDS, seconds_for
    from mpelu.lab.compare.verdict import summarize
    from mpelu.lab.config import Config
    from mpelu.lab.reporting import write_report
    from mpelu.lab.sweep import runner
    from mpelu.lab.sweep.estimate import duration

    fields = given(arguments)
    lr = fields.pop("lr", None)
    config = Config(**fields) if lr in (None, "auto") else Config(**fields, lr=lr)
    default = Path("out/compare") / arguments.model.replace(":", ".")
    jobs = arguments.jobs or os.cpu_count() or 1
    options = options_of(
        arguments, out=arguments.out or default, jobs=jobs, data_dir=config.data_dir
    )
    say = _say if not arguments.quiet else lambda text: None
    chosen = comparison.plan(
        config,
        [each.strip() for each in arguments.activations.split(",") if each.strip()],
        [each.strip() for each in arguments.inits.split(",") if each.strip()],
        arguments.budget,
        options,
        say,
        None if lr is None else lr == "auto",
    )
    steps, runs = chosen.config.iterations or 0, len(chosen.arms) * chosen.seeds
    searched = len(chosen.arms) if chosen.search_steps else 0
    expected = duration(seconds_for(steps, chosen.costs, runs, jobs, searched))
    first = ""
    if searched:
        most = searched * sum(ROUNDS)
        first = f"at most {most} runs of {chosen.search_steps} steps to find learning rates, then "
    say(f"{first}{runs} runs of {steps} steps, {jobs} at a time: at most about {expected} for all")
    code, done, result = 0, 0, None

    def show(event: runner.Event, left: str = "") -> None:
        nonlocal code
        (_say if event.is_problem else say)(event.text + left)
        code = max(code, int(event.is_problem))

    with terminable() as stopped:
        if searched:
            chosen = replace(chosen, rates=rates.search(chosen, options, show))
            for arm in chosen.arms:
                say(f"learning rate of {arm.title}: {chosen.rates[arm.name].describe()}")
        began = time.monotonic()
        events = runner.run([chosen.study(summarize)], chosen.options(options))
        with contextlib.closing(events):
            for event in events:
                result = event.result or result
                done += bool(event.total)
                if event.result is None:
                    spent, missing = time.monotonic() - began, event.total - done
                    left = f"; about {duration(spent / done * missing)} left" if missing > 0 else ""
                    show(event, left)
    if stopped:
        return stopped[0]
    if result is None:
        raise UserError("compare: expected runs that ended, got none")
    tables.show(result)
    print(write_report(options.out, options.out).page)
    return code


def _rate(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number or auto, got {text!r}") from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
