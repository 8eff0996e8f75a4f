"""How does `initialize_` do on architectures nobody here wrote, beside AnyInit and LSUV?

    python benchmarks/zoo.py [--only NAME ...] [--methods NAME ...] [--threads 1]
    python benchmarks/zoo.py --table

Each model of zoo_models.py is initialized on one batch and scored on another: the variance after
the last weight, the ratio of the gradients of the first and the last weight, and the variance after
every weight against its prediction. Batch norm uses the statistics of the batch; dropout is off.
Prints a table and writes results/zoo.json, which --table prints in Markdown. Models whose package
is missing are skipped and named.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import anyinit
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mpelu
from common import RESULTS, write
from mpelu.graph import arguments, evaluating, record, tensors_in
from mpelu.init.layers import layer_of
from mpelu.init.model import variance_of
from zoo_models import ZOO

warnings.simplefilter("ignore")


def anyinit_analytic(model: nn.Module, batch: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        anyinit.initialize(model, "analytic", batch, seed=0)


def ours(method: str, mode: str = "fan_in") -> Callable[[nn.Module, Any], Any]:
    def initialize(model: nn.Module, batch: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        return mpelu.init.initialize_(model, batch, method, mode, generator)

    return initialize


METHODS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "exact": ours("exact"),
    "exact balanced": ours("exact", "balanced"),
    "taylor": ours("taylor"),
    "lsuv": ours("lsuv"),
    "anyinit": anyinit_analytic,
}


def variances(model: nn.Module, batch: Any) -> dict[str, float]:
    """Variance of the output of each weight at its first use, by path, in order."""
    found: dict[str, float] = {}
    names = {id(parameter): name for name, parameter in model.named_parameters()}

    def measure(call: Any, output: Tensor, _: Any) -> Tensor:
        layer = layer_of(call)
        if layer is not None:
            base = layer.weight if id(layer.weight) in names else layer.weight._base
            name = names.get(id(base))
            if name is not None:
                # Parts of a packed weight have rows of their own, in this order.
                while name in found:
                    name += "'"
                if layer.weight is not base or names[id(base)] not in found:
                    found[name] = variance_of(output)
        return output

    record(model, batch, after=measure)
    return found


def gradient_ratio(model: nn.Module, batch: Any, first: str, last: str) -> float:
    """Norm of the gradient of the first weight over that of the last, for a random direction."""
    args, kwargs = arguments(batch)
    with evaluating(model.modules()):
        outputs = [
            tensor
            for tensor in tensors_in(model(*args, **kwargs))
            if tensor.is_floating_point() and tensor.requires_grad
        ]
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(outputs[0].shape, generator=generator)
        (outputs[0] * direction).sum().backward()
    norms = [model.get_parameter(name).grad for name in (first, last)]
    model.zero_grad()
    if norms[0] is None or norms[1] is None or not norms[1].norm() > 0:
        return float("nan")
    ratio: float = (norms[0].norm() / norms[1].norm()).item()
    return ratio


def score(name: str, method: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, make = ZOO[name]()
    batch, fresh = make(), make()
    start = time.perf_counter()
    report = METHODS[method](model, batch)
    seconds = time.perf_counter() - start
    measured = variances(model, fresh)
    order = [path.rstrip("'") for path in measured]
    result: dict[str, Any] = {
        "seconds": seconds,
        "output": list(measured.values())[-1],
        "gradient": gradient_ratio(model, fresh, order[0], order[-1]),
        "last": order[-1],
    }
    if method not in ("anyinit", "lsuv"):
        result.update(against_prediction(report, measured))
    return result


def against_prediction(report: Any, measured: dict[str, float]) -> dict[str, Any]:
    """How far the variances are from their predictions, and what was said about them."""
    ratios: list[tuple[str, float, str]] = []
    seen: dict[str, int] = {}
    for row in report.rows:
        key = row.layer + "'" * seen.get(row.layer, 0)
        seen[row.layer] = seen.get(row.layer, 0) + 1
        if row.predicted and key in measured and row.rule != "frozen":
            ratios.append((key, measured[key] / row.predicted, row.note))
    rules = [row.rule for row in report.rows]
    off = [each for each in ratios if not 0.5 <= each[1] <= 2]
    within = [each for each in ratios if 0.5 <= each[1] <= 2]
    return {
        "placed": sum("left" not in rule and rule != "frozen" for rule in rules),
        "left": {row.layer: row.note for row in report.rows if row.rule == "left as it was"},
        "measured": sum("measured" in rule for rule in rules),
        "compared": len(ratios),
        "median": statistics.median(ratio for _, ratio, _ in ratios) if ratios else None,
        "worst": max((max(ratio, 1 / max(ratio, 1e-9)) for _, ratio, _ in ratios), default=None),
        "off": [(key, ratio, note) for key, ratio, note in off],
        "noted_within": sum(bool(note) for _, _, note in within),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        sys.stdout.write(markdown(json.loads((RESULTS / "zoo.json").read_text())["models"]) + "\n")
        return
    torch.set_num_threads(options.threads)
    console = Console(width=150)
    results: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name in ZOO:
        if options.only and not any(part in name for part in options.only):
            continue
        scores: dict[str, Any] = {}
        for method in options.methods:
            try:
                scores[method] = score(name, method)
            except ImportError as error:
                skipped[name] = str(error)
                break
            except Exception as error:  # a method may fail on a model: that is a result
                scores[method] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        if scores:
            results[name] = scores
            console.print(row_of(name, scores))
    summary = summarize(results, options.methods)
    table = Table(title="models")
    for heading in ("", *next(iter(summary.values()))):
        table.add_column(heading)
    for method, numbers in summary.items():
        table.add_row(method, *map(str, numbers.values()))
    console.print(table)
    for name, why in skipped.items():
        console.print(f"skipped {name}: {why}")
    if not options.only:
        write("zoo", {"models": results, "summary": summary, "skipped": skipped})


def row_of(name: str, scores: dict[str, Any]) -> str:
    parts = [f"{name:40s}"]
    for method, found in scores.items():
        if "error" in found:
            parts.append(f"{method}: {found['error'][:60]}")
        else:
            parts.append(f"{method}: {found['output']:.2g} / {found['gradient']:.2g}")
    first = scores.get("exact", {})
    if "placed" in first:
        parts.append(
            f"placed {first['placed']} left {len(first['left'])} measured {first['measured']} "
            f"off {len(first['off'])} noted {first['noted_within']} {first['seconds']:.2f} s"
        )
    return " | ".join(parts)


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """One line per model: what "exact" did, then variance / gradient ratio of each method."""

    def pair(scores: dict[str, Any], method: str) -> str:
        found = scores.get(method, {"error": ""})
        return "error" if "error" in found else f"{found['output']:.2g} / {found['gradient']:.2g}"

    shown = ("exact", "exact balanced", "lsuv", "anyinit")
    lines = [
        "| model | placed, left | measured | median, worst | " + " | ".join(shown) + " | seconds |",
        "|---" * (5 + len(shown)) + "|",
    ]
    for name, scores in results.items():
        own = scores["exact"]
        seconds = ", ".join(
            f"{scores[method]['seconds']:.2f}" if "seconds" in scores[method] else "-"
            for method in ("exact", "lsuv", "anyinit")
        )
        cells = [
            name,
            f"{own['placed']}, {len(own['left'])}",
            str(own["measured"]),
            f"{own['median']:.2f}, {own['worst']:.2f}",
            *[pair(scores, method) for method in shown],
            seconds,
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summarize(results: dict[str, dict[str, Any]], methods: list[str]) -> dict[str, dict[str, Any]]:
    summary = {}
    for method in methods:
        found = [scores[method] for scores in results.values() if method in scores]
        ran = [each for each in found if "error" not in each]
        compared = sum(each.get("compared", 0) for each in ran)
        off = [item for each in ran for item in each.get("off", ())]
        summary[method] = {
            "ran": f"{len(ran)} of {len(found)}",
            "output in [0.3, 3]": sum(0.3 <= each["output"] <= 3 for each in ran),
            "gradient in [0.1, 10]": sum(0.1 <= each["gradient"] <= 10 for each in ran),
            "weights": compared,
            "2 x off": len(off),
            "without note": sum(not note for *_, note in off),
            "notes within 2 x": sum(each.get("noted_within", 0) for each in ran),
        }
    return summary


if __name__ == "__main__":
    main()
