"""`mpelu list`: the studies and what they need."""

from __future__ import annotations

import argparse
from typing import Any

from mpelu.lab.commands.output import console

_EXAMPLES = """\
examples:
  mpelu list
  mpelu reproduce table9 --dry-run"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("list", epilog=_EXAMPLES)
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> None:
    from mpelu.lab import paper
    from mpelu.lab.sweep.study import SCALES, Options
    from mpelu.lab.tables import make_table

    rows = []
    for name in paper.names():
        study = paper.find(name)
        options = [Options(scale=scale) for scale in SCALES]
        counts = [len([*study.tuning_runs(each), *study.runs(each)]) for each in options]
        rows.append((name, *(str(count or "-") for count in counts), study.needs, study.title))
    header = ("study", *SCALES, "data", "about")
    terminal = console()
    terminal.print(make_table(header, rows, terminal.width, right=(1, 2, 3)))
    terminal.print(f"\n{', '.join(SCALES)}: runs at this scale; data: needed at full scale")
