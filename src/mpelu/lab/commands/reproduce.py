"""`mpelu reproduce`: the paper's tables and figures, run again."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from mpelu.lab.errors import UserError

SCALES = ("smoke", "small", "full")
READINGS = ("paper", "code")
EXECUTORS = ("local", "ray")


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "reproduce",
        help="run tables and figures of the paper, and show paper and measurement side by side",
    )
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="table1 ... table12, figure1 ... figure5, "
        "convergence, lsuv, or all; `mpelu list` tells what each needs"
    )  # fmt: skip
    parser.add_argument(
        "--scale", choices=SCALES, default="small",
        help="full: the paper's setting; small: shrunk to half an hour on two cores at most; "
        "smoke: a few steps, to see that it runs (default: small)",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, help="runs of each setting (the recipe's own)")
    parser.add_argument(
        "--reading", choices=READINGS,
        help="what to follow where paper and published code disagree (the recipe's own)",
    )  # fmt: skip
    parser.add_argument("--data-dir", help="where the data lie or are downloaded to")
    parser.add_argument(
        "--out", type=Path, default=Path("out/reproduce"), help="folder of the results (default: "
        "out/reproduce); runs finished there are not repeated, interrupted ones go on",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print results and failures only")
    parser.add_argument(
        "--dry-run", action="store_true", help="list the runs with an estimate of their time"
    )
    parser.add_argument("--executor", choices=EXECUTORS, default="local", help="default: local")
    parser.add_argument(
        "--jobs",
        type=int,
        help="runs at a time (default: one for each core at small scale, else 1)",
    )
    ray = parser.add_argument_group("executor ray")
    ray.add_argument("--ray-address", help="of a cluster; without, one is made on this machine")
    ray.add_argument("--cpus-per-run", type=float, default=1.0, help="default: 1")
    ray.add_argument("--gpus-per-run", type=float, default=0.0, help="default: 0")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from mpelu.lab import studies as recipes
    from mpelu.lab.studies import estimate, recipe, runner

    if arguments.jobs is not None and arguments.jobs < 1:
        raise UserError(f"jobs: expected a number >= 1, got {arguments.jobs}")
    if arguments.cpus_per_run <= 0 or arguments.gpus_per_run < 0:
        raise UserError(
            "expected --cpus-per-run > 0 and --gpus-per-run >= 0, got "
            f"{arguments.cpus_per_run:g} and {arguments.gpus_per_run:g}"
        )
    if arguments.ray_address and arguments.executor != "ray":
        raise UserError("ray-address: expected --executor ray with it, got local")
    names = recipes.names() if "all" in arguments.names else arguments.names
    chosen = [recipes.find(name) for name in dict.fromkeys(names)]
    options = recipes.Options(
        scale=arguments.scale,
        seeds=arguments.seeds,
        reading=arguments.reading,
        data_dir=arguments.data_dir,
    )
    recipe.check(options)
    jobs = runner.jobs_of(arguments.jobs, arguments.scale)
    if arguments.dry_run:
        for line in estimate.plan_lines(chosen, options, jobs):
            print(line, flush=True)
        return 0
    plan = runner.Plan(
        out=arguments.out,
        executor=arguments.executor,
        jobs=jobs,
        address=arguments.ray_address,
        cpus=arguments.cpus_per_run,
        gpus=arguments.gpus_per_run,
        quiet=arguments.quiet,
    )
    return runner.reproduce(chosen, options, plan)
