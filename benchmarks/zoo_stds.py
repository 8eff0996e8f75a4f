"""Does a change of `mpelu.init` change a weight of architectures nobody here wrote?

    python benchmarks/zoo_stds.py FILE [--only NAME ...] [--methods NAME ...] [--seed 0]
    python benchmarks/zoo_stds.py --compare OLD NEW

The first initializes each model of zoo_models.py and zoo_held_out.py by each method, with inputs
and without, and writes the standard deviation of every parameter and buffer, and the variance
predicted after every weight, to FILE. What FILE has already is not computed again, so a run that
ends early goes on where it was. Run it at two commits, with the same packages on the same machine.
The second lists every number that differs by more than 1e-6 of itself, and ends with exit code 1
if there is one.

It needs no more of mpelu than `initialize_` and its report: a copy runs at older commits, too.
Models whose package is missing are skipped and named.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import mpelu
from zoo_held_out import HELD_OUT
from zoo_models import ZOO

warnings.simplefilter("ignore")

ALL = {**ZOO, **HELD_OUT}
METHODS = ("exact", "taylor", "critical", "deep", "lsuv", "msra", "xavier", "gaussian")
NEED_INPUTS = ("lsuv",)
TOLERANCE = 1e-6
"""Relative."""

Numbers = dict[str, float]
Case = Numbers | str
"""What one initialization came to; a string is the error that it raised."""


def initialize(model: torch.nn.Module, inputs: Any, method: str, seed: int) -> Any:
    """The one call of what is to be compared. Returns the report."""
    generator = torch.Generator().manual_seed(seed)
    return mpelu.init.initialize_(model, inputs, method, generator=generator)


def case(name: str, method: str, has_inputs: bool, seed: int) -> Case:
    torch.manual_seed(seed)
    model, make = ALL[name]()
    inputs = make() if has_inputs else None
    try:
        report = initialize(model, inputs, method, seed)
    except Exception as error:  # a method may fail on a model: then it should fail in both files
        return f"{type(error).__name__}: {error}".splitlines()[0]
    found = {
        path: deviation(tensor)
        for path, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex())
    }
    for row in report.rows:
        if row.predicted is not None:
            found[unused(f"{row.name}, predicted", found)] = row.predicted
    return found


def deviation(tensor: Tensor) -> float:
    """Standard deviation about zero, so that constants count."""
    return tensor.detach().abs().double().square().mean().sqrt().item()


def unused(key: str, found: Numbers) -> str:
    while key in found:
        key += "'"
    return key


def write(path: Path, names: list[str], methods: list[str], seed: int) -> None:
    console = Console(width=120)
    stored: dict[str, dict[str, Case]] = json.loads(path.read_text()) if path.exists() else {}
    for index, name in enumerate(names, 1):
        began = time.perf_counter()
        cases = stored.get(name, {})
        try:
            for method in methods:
                for has_inputs in (True, False):
                    title = f"{method}, {'inputs' if has_inputs else 'no inputs'}, seed {seed}"
                    if title not in cases and (has_inputs or method not in NEED_INPUTS):
                        cases[title] = case(name, method, has_inputs, seed)
        except ImportError as error:
            console.print(f"{index}/{len(names)} skipped {name}: {error}")
            continue
        stored[name] = cases
        path.write_text(json.dumps(stored, indent=1) + "\n")
        failed = sum(isinstance(each, str) for each in cases.values())
        seconds = time.perf_counter() - began
        console.print(
            f"{index}/{len(names)} {name}: {len(cases)} cases, {failed} failed, {seconds:.1f} s"
        )


def compare(old: dict[str, dict[str, Case]], new: dict[str, dict[str, Case]]) -> bool:
    """Prints what differs; whether anything does."""
    console = Console(width=200, highlight=False)
    counts: Counter[str] = Counter()
    largest = 0.0
    for name in dict.fromkeys((*old, *new)):
        one, other = old.get(name, {}), new.get(name, {})
        for title in dict.fromkeys((*one, *other)):
            if title not in one or title not in other:
                counts["cases in one file only"] += 1
                continue
            counts["cases in both"] += 1
            differences = []
            for key, before, after in pairs(one[title], other[title]):
                counts["numbers"] += 1
                relative = difference(before, after)
                largest = max(largest, relative)
                if relative > TOLERANCE:
                    differences.append(f"    {key}: {before} -> {after}")
            counts["numbers that differ"] += len(differences)
            if differences:
                counts["cases that differ"] += 1
                console.print("\n".join([f"{name}: {title}", *differences]), markup=False)
    for what, count in counts.items():
        console.print(f"{what}: {count}")
    console.print(f"largest relative difference: {largest:.2g}")
    return counts["numbers that differ"] > 0


def pairs(old: Case, new: Case) -> list[tuple[str, float | str | None, float | str | None]]:
    """Key, number before and number after; of errors, the kind."""
    if isinstance(old, str) or isinstance(new, str):
        before, after = (
            each.partition(":")[0] if isinstance(each, str) else "no error" for each in (old, new)
        )
        return [("error", before, after)]
    return [(key, old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new))]


def difference(old: float | str | None, new: float | str | None) -> float:
    """Relative; infinite where there is nothing to compare."""
    if old == new or all(isinstance(each, float) and math.isnan(each) for each in (old, new)):
        return 0.0
    if not isinstance(old, float) or not isinstance(new, float):
        return math.inf
    relative = abs(new - old) / max(abs(old), abs(new))
    return relative if math.isfinite(relative) else math.inf


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", nargs="?", type=Path, help="where the numbers go")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="models with this in their name")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.compare:
        old, new = (json.loads(path.read_text()) for path in options.compare)
        return int(compare(old, new))
    if options.file is None:
        parser.error("expected FILE or --compare OLD NEW")
    torch.set_num_threads(1)
    only = options.only or [""]
    names = [name for name in ALL if any(part in name for part in only)]
    write(options.file, names, options.methods, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
