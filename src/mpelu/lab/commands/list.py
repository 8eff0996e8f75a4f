"""`mpelu list`: the studies, networks, presets and activations, by name."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from mpelu.lab.commands import models
from mpelu.lab.tables import console, print_table

EXAMPLES = """\
examples:
  mpelu list
  mpelu list activations
  mpelu reproduce table9 --dry-run"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=tuple(_LISTS), default="studies",
        help="what to list: studies of the paper, models (networks and their sizes), presets of "
        "`mpelu train`, or activations (default: studies)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    _LISTS[arguments.what](arguments)


def _studies(_: argparse.Namespace) -> None:
    from mpelu.lab import paper
    from mpelu.lab.sweep.study import SCALES, Options

    rows = []
    for name in paper.names():
        study = paper.find(name)
        options = [Options(scale=scale) for scale in SCALES]
        counts = [len([*study.tuning_runs(each), *study.runs(each)]) for each in options]
        rows.append((name, *(str(count or "-") for count in counts), study.needs, study.title))
    print_table(("study", *SCALES, "data", "about"), rows, right=(1, 2, 3))
    console().print(f"\n{', '.join(SCALES)}: runs at this scale; data: needed at full scale")


def _presets(_: argparse.Namespace) -> None:
    from mpelu.lab.paper.settings import PRESETS

    print_table(("preset", "about"), [(name, preset.help) for name, preset in PRESETS.items()])


def _activations(_: argparse.Namespace) -> None:
    from mpelu.activations import TABLE

    rows = [
        (
            name,
            record.label,
            ", ".join(each.symbol or each.attribute for each in record.parameters) or "-",
            record.module or "-",
        )
        for name, record in TABLE.items()
    ]
    print_table(("activation", "label", "learnable", "class"), rows)


_LISTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "studies": _studies,
    "models": models.run,
    "presets": _presets,
    "activations": _activations,
}
