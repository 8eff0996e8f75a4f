"""How does `initialize_` do on architectures nobody here wrote, beside AnyInit and LSUV?

    python benchmarks/zoo.py [--only NAME ...] [--methods NAME ...] [--seed 0] [--threads 1]
    python benchmarks/zoo.py --table

Each model of zoo_models.py, and of zoo_held_out.py, which holds those that were not used while
tuning, is initialized on one batch and scored on another: the variance after the last weight, the
ratio of the gradients of the first and the last weight, and the variance after every weight against
its prediction. Batch norm uses the statistics of the batch; dropout is off. Prints a table and
updates results/zoo.json, which --table prints in Markdown. Models whose package is missing are
skipped and named.
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
from mpelu.graph import arguments, evaluating, layer_of, record, tensors_in
from mpelu.init import LSUV, Exact, Taylor
from mpelu.init.measure import variance_of
from zoo_held_out import HELD_OUT
from zoo_models import ZOO

warnings.simplefilter("ignore")


Method = Callable[[nn.Module, Any, int], Any]
"""Takes the model, a batch and a seed; returns a report."""


def theirs(mode: str) -> Method:
    def initialize(model: nn.Module, batch: Any, seed: int) -> Any:
        if isinstance(batch, dict) and len(batch) == 1:  # it takes no keyword arguments
            (batch,) = batch.values()
        with contextlib.redirect_stdout(io.StringIO()):
            return anyinit.initialize(model, mode, batch, seed=seed)

    return initialize


def ours(method: mpelu.init.Method) -> Method:
    def initialize(model: nn.Module, batch: Any, seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return mpelu.init.initialize_(model, batch, method, generator=generator)

    return initialize


METHODS: dict[str, Method] = {
    "exact": ours(Exact(mode="fan_in")),
    "exact balanced": ours(Exact()),
    "taylor": ours(Taylor(mode="fan_in")),
    "lsuv": ours(LSUV()),
    "anyinit": theirs("analytic"),
    "anyinit empirical": theirs("empirical"),
}
OWN = ("exact", "exact balanced", "taylor")
"""Methods that predict the variance after each weight."""
ALL = {**ZOO, **HELD_OUT}


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
        try:
            (outputs[0] * direction).sum().backward()
        except RuntimeError:  # a model that changes in place what autograd needs, in evaluation
            return float("nan")
    norms = [model.get_parameter(name).grad for name in (first, last)]
    model.zero_grad()
    if norms[0] is None or norms[1] is None or not norms[1].norm() > 0:
        return float("nan")
    ratio: float = (norms[0].norm() / norms[1].norm()).item()
    return ratio


def score(name: str, method: str, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model, make = ALL[name]()
    batch, fresh = make(), make()
    start = time.perf_counter()
    report = METHODS[method](model, batch, seed)
    seconds = time.perf_counter() - start
    measured = variances(model, fresh)
    order = [path.rstrip("'") for path in measured]
    result: dict[str, Any] = {
        "seconds": seconds,
        "output": list(measured.values())[-1],
        "gradient": gradient_ratio(model, fresh, order[0], order[-1]),
        "last": order[-1],
    }
    if method in OWN:
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
        "left": {row.layer: row.note for row in report.rows if row.rule == "left unchanged"},
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        sys.stdout.write(markdown(stored()) + "\n")
        return
    torch.set_num_threads(options.threads)
    console = Console(width=150)
    results: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    for name in ALL:
        if options.only and not any(part in name for part in options.only):
            continue
        scores: dict[str, Any] = {}
        for method in options.methods:
            try:
                scores[method] = score(name, method, options.seed)
            except ImportError as error:
                skipped[name] = str(error)
                break
            except Exception as error:  # a method may fail on a model: that is a result
                scores[method] = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        if scores:
            results[name] = scores
            console.print(row_of(name, scores))
    for title, names in (("models", ZOO), ("not used while tuning", HELD_OUT)):
        summary = summarize({name: results[name] for name in names if name in results})
        table = Table(title=title)
        for heading in ("", *next(iter(summary.values()), ())):
            table.add_column(heading)
        for method, numbers in summary.items():
            table.add_row(method, *map(str, numbers.values()))
        console.print(table)
    for name, why in skipped.items():
        console.print(f"skipped {name}: {why}")
    runs = stored()
    for name, scores in results.items():
        runs.setdefault(str(options.seed), {}).setdefault(name, {}).update(scores)
    ordered = {
        seed: {name: runs[seed][name] for name in ALL if name in runs[seed]}
        for seed in sorted(runs, key=int)
    }
    write("zoo", {"seeds": ordered})


def stored() -> dict[str, dict[str, dict[str, Any]]]:
    """Scores by seed, model and method, of this run and earlier ones."""
    path = RESULTS / "zoo.json"
    runs: dict[str, Any] = json.loads(path.read_text())["seeds"] if path.exists() else {}
    return runs


def row_of(name: str, scores: dict[str, Any]) -> str:
    parts = [f"{name:40s}"]
    for method, found in scores.items():
        if "error" in found:
            parts.append(f"{method}: {found['error'][:60]}")
        else:
            parts.append(f"{method}: {found['output']:.2g} / {found['gradient']:.2g}")
    first = scores.get("exact balanced", {})
    if "placed" in first:
        parts.append(
            f"placed {first['placed']} left {len(first['left'])} measured {first['measured']} "
            f"off {len(first['off'])} noted {first['noted_within']} {first['seconds']:.2f} s"
        )
    return " | ".join(parts)


def markdown(runs: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The counts for each seed, then one line per model for the first seed."""
    parts = []
    for title, names in (("used while tuning", ZOO), ("not used while tuning", HELD_OUT)):
        lines = [f"| {title} | seed | " + " | ".join(COUNTS) + " |", "|---" * 9 + "|"]
        for seed, results in runs.items():
            found = summarize({name: results[name] for name in names if name in results})
            lines += [
                f"| {method} | {seed} | " + " | ".join(map(str, counts.values())) + " |"
                for method, counts in found.items()
            ]
        parts.append("\n".join(lines))
    for names in (ZOO, HELD_OUT):
        first = next(iter(runs.values()))
        parts.append(models_table({name: first[name] for name in names if name in first}))
    return "\n\n".join(parts)


def models_table(results: dict[str, dict[str, Any]]) -> str:
    """One line per model: what "exact" did, then variance / gradient ratio of each method."""

    def pair(scores: dict[str, Any], method: str) -> str:
        if method not in scores:
            return "-"
        found = scores[method]
        return "error" if "error" in found else f"{found['output']:.2g} / {found['gradient']:.2g}"

    shown = ("exact balanced", "exact", "lsuv", "anyinit", "anyinit empirical")
    lines = [
        "| model | placed, left | measured | median, worst | " + " | ".join(shown) + " | seconds |",
        "|---" * (5 + len(shown)) + "|",
    ]
    for name, scores in results.items():
        own = scores.get("exact balanced", scores["exact"])
        seconds = ", ".join(
            f"{scores[method]['seconds']:.2f}" if "seconds" in scores.get(method, {}) else "-"
            for method in ("exact balanced", "lsuv", "anyinit")
        )
        if "error" in own:
            lines.append(f"| {name} | {own['error']} |" + " |" * (3 + len(shown)))
            continue
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


COUNTS = (
    "ran", "output in [0.3, 3]", "gradient in [0.1, 10]", "weights", "2 x off", "without note",
    "notes within 2 x",
)  # fmt: skip


def summarize(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By method: how many models are in range, and how many weights off their prediction."""
    summary = {}
    for method in METHODS:
        found = [scores[method] for scores in results.values() if method in scores]
        if not found:
            continue
        ran = [each for each in found if "error" not in each]
        off = [item for each in ran for item in each.get("off", ())]
        numbers = (
            f"{len(ran)} of {len(found)}",
            sum(0.3 <= each["output"] <= 3 for each in ran),
            sum(0.1 <= each["gradient"] <= 10 for each in ran),
            sum(each.get("compared", 0) for each in ran),
            len(off),
            sum(not note for *_, note in off),
            sum(each.get("noted_within", 0) for each in ran),
        )
        summary[method] = dict(zip(COUNTS, numbers, strict=True))
    return summary


if __name__ == "__main__":
    main()
