"""The figures and tables of docs/depth.md.

    python -m research.depth_page keep FOLDER ...   # copies what is needed of study folders
    python -m research.depth_page                   # draws figures, fills in the table

The first reads the folders that `mpelu reproduce research.depth:study research.depth:rivals`
writes. What it keeps is in docs/results/depth; nothing else is needed for the second.
"""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from mpelu import theory
from mpelu.elementwise import average, exponential, leaky
from mpelu.lab.run import folder as runs
from mpelu.lab.sweep.gather import RUNS, TUNING, test_loss
from mpelu.lab.training import network
from research import depth

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "results" / "depth" / "runs.json"
START, END = "<!-- runs -->", "<!-- end of runs -->"
COLORS = ("#D55E00", "#0072B2", "#009E73", "#000000", "#CC79A7", "#E69F00")
FIELDS = ("model", "activation", "init", "init_distribution", "init_shape", "init_sized", "lr")


def keep(folders: list[Path]) -> None:
    """Collects the ended runs of study folders into one file, a line per run."""
    found = []
    for folder in folders:
        for kind in (TUNING, RUNS):
            for path in sorted((folder / kind).iterdir()) if (folder / kind).is_dir() else []:
                run = runs.read(path)
                if run.status.get("state") not in runs.ENDED:
                    continue
                loss = test_loss(run)
                found.append(
                    {
                        "name": path.name,
                        "tuning": kind == TUNING,
                        "seed": run.config["seed"],
                        "test_loss": None if math.isinf(loss) else round(loss, 5),
                        "test_error": run.status.get("test_error"),
                        "config": {name: run.config.get(name) for name in FIELDS},
                        "losses": [round(row["loss"], 4) for row in run.steps if "loss" in row],
                        "revision": run.environment.get("revision"),
                        "cpu": run.environment.get("cpu"),
                    }
                )
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    KEPT.write_text("[\n" + ",\n".join(json.dumps(each) for each in found) + "\n]\n")


def losses() -> dict[str, list[float]]:
    """Test losses by setting, infinite where a run diverged; without those that chose rates."""
    found: dict[str, list[float]] = {}
    for each in json.loads(KEPT.read_text()):
        if not each["tuning"]:
            loss = math.inf if each["test_loss"] is None else each["test_loss"]
            found.setdefault(each["name"].rpartition("-seed")[0], []).append(loss)
    return found


def arm_labels() -> dict[str, str]:
    """Activation and initialization of every setting, controls last."""
    labels: dict[str, str] = {}
    for setting in depth.settings("paper"):
        layers, activation, init = setting.labels
        if setting.name != depth.SOFTMAX:
            labels.setdefault(setting.name.removeprefix(f"{layers}-"), f"{activation}, {init}")
    control = f"{depth.CONTROL}-orthogonal"
    del labels[control]
    labels |= {"mpelu-tat": "MPELU, TAT", "mpelu-anyinit": "MPELU, AnyInit 0.4"}
    labels[control] = "**control**: no activations, orthogonal"
    return labels


def table() -> str:
    """Markdown: a row for each setting, a column for each depth that has been run."""
    found = losses()
    depths = sorted({int(name.partition("-")[0]) for name in found if name != depth.SOFTMAX})
    lines = [
        "| start | " + " | ".join(f"{layers} layers" for layers in depths) + " |",
        "|---|" + "---|" * len(depths),
    ]
    for arm, label in arm_labels().items():
        cells = [_cell(found.get(f"{layers}-{arm}", [])) for layers in depths]
        if any(cells):
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    softmax = _cell(found.get(depth.SOFTMAX, []))
    lines.append(
        "| **control**: softmax regression | " + " | ".join([softmax] * len(depths)) + " |"
    )
    return "\n".join(lines)


def _cell(values: list[float]) -> str:
    """The mean, and the range of all seeds."""
    if not values:
        return ""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) < len(values):
        return f"{len(values) - len(finite)} of {len(values)} diverged"
    mean = sum(finite) / len(finite)
    if len(finite) == 1:
        return f"{mean:.3f} (one seed)"
    count = "" if len(finite) == 3 else f"; {len(finite)} seeds"
    return f"{mean:.3f} ({min(finite):.3f} to {max(finite):.3f}{count})"


def draw_theory() -> Figure:
    """Correlation maps, the correlation over 100 layers, and the gradient over 100 layers."""
    beta = theory.beta_for(theory.chain(100), 0.5, critical=True)
    units = {
        "ReLU": (leaky(0.0), False),
        "MPELU (1, 1), exact": (exponential(1.0, 1.0), False),
        "MPELU (1, 1), critical": (exponential(1.0, 1.0), True),
        f"MPELU ({1 / beta:.2g}, {beta:.2g}), critical": (exponential(1 / beta, beta), True),
    }
    figure = Figure(figsize=(11, 3.4), layout="constrained")
    one, two, three = figure.subplots(1, 3)
    c = torch.linspace(0, 1, 101, dtype=torch.float64)
    one.plot(c, c, color="#999999", linewidth=0.8)
    for (label, (function, critical)), color in zip(units.items(), COLORS, strict=False):
        step = theory.tabulated_map(function, critical)
        one.plot(c, [step(each) for each in c.tolist()], color=color)
        line, value = [0.0], 0.0
        for _ in range(100):
            value = step(value)
            line.append(value)
        two.plot(line, color=color, label=label)
        weight = 1 / average(function.moments()[1])
        if critical:
            found = theory.critical_variances(function)
            assert found is not None
            weight = found[0]
        chi = weight * average(function.squared_slope())
        three.semilogy([chi**layers for layers in range(101)], color=color)
    one.set(xlabel="correlation before", ylabel="correlation after", title="One layer")
    two.set(xlabel="layer", ylabel="correlation", title="Two unrelated inputs", ylim=(0, 1))
    three.set(xlabel="layers from the output", ylabel="variance", title="Gradient (predicted)")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def draw_start() -> Figure:
    """Signal and gradient by layer of the untrained 100-layer network, on noise."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    one, two = figure.subplots(1, 2)
    arms = ("Taylor", "exact", "orthogonal", "deep")
    for name, color in zip(arms, COLORS, strict=False):
        config = replace(depth.base(), model="plain-100", activation="mpelu", **depth.INITS[name])
        model: Any = network.build(config, 10, 3, 16)
        signal, gradient = _by_layer(model)
        one.semilogy(range(1, len(signal) + 1), signal, color=color, label=name)
        two.semilogy(range(1, len(signal) + 1), gradient, color=color)
    one.set(xlabel="layer", ylabel="variance", title="Signal")
    two.set(xlabel="layer", ylabel="variance, last but one = 1", title="Gradient")
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    return figure


def _by_layer(model: nn.Sequential) -> tuple[list[float], list[float]]:
    generator = torch.Generator().manual_seed(0)
    value: Tensor = torch.randn(32, 3, 16, 16, generator=generator)
    outputs = []
    for module in model:
        value = module(value)
        if isinstance(module, nn.Conv2d):
            value.retain_grad()
            outputs.append(value)
    value.backward(torch.randn(value.shape, generator=generator))
    gradients = [each.grad.var().item() for each in outputs if each.grad is not None]
    return [each.var().item() for each in outputs], [each / gradients[-1] for each in gradients]


def draw_losses() -> Figure:
    """The mean over depth for some starts, and a point for each run at the depths of the grid."""
    found = losses()
    labels = arm_labels()
    figure = Figure(figsize=(12, 4.8), layout="constrained")
    first, *panels = figure.subplots(1, 1 + len(depth.GRID), width_ratios=(1.25, 1, 1))
    for arm, (color, label) in _LINES.items():
        points = {layers: found[f"{layers}-{arm}"] for layers in sorted(depth.DEPTHS)
                  if f"{layers}-{arm}" in found}  # fmt: skip
        means = [sum(values) / len(values) for values in points.values()]
        first.plot(list(points), means, color=color, marker="o", markersize=4, label=label)
        lows, highs = ([end(values) for values in points.values()] for end in (min, max))
        first.fill_between(list(points), lows, highs, color=color, alpha=0.15, linewidth=0)
    softmax = found[depth.SOFTMAX]
    first.axhline(sum(softmax) / len(softmax), color="#999999", linewidth=1, linestyle="--")
    first.text(15, 1.01 * softmax[0], "softmax regression", fontsize=8, color="#666666")
    ticks = sorted(depth.DEPTHS)
    first.set(xscale="log", xlabel="layers", ylabel="test loss", title="Mean and range of 3 seeds")
    first.set_xticks(ticks, [str(each) for each in ticks])
    first.minorticks_off()
    first.legend(fontsize=8)
    last = depth.GRID[-1]
    shown = [arm for arm in labels if all(f"{d}-{arm}" in found for d in depth.GRID)]
    shown.sort(key=lambda arm: sum(found[f"{last}-{arm}"]) / len(found[f"{last}-{arm}"]))
    for axes, layers in zip(panels, depth.GRID, strict=True):
        for place, arm in enumerate(shown):
            values = [min(value, math.log(10) * 1.05) for value in found[f"{layers}-{arm}"]]
            color = _LINES[arm][0] if arm in _LINES else COLORS[1]
            axes.plot(values, [place] * len(values), "o", color=color, alpha=0.8)
        axes.axvline(sum(softmax) / len(softmax), color="#999999", linewidth=1, linestyle="--")
        names = [labels[arm].replace("**", "") for arm in shown]
        axes.set_yticks(range(len(shown)), names if axes is panels[0] else [], fontsize=8)
        axes.invert_yaxis()
        axes.grid(axis="y", color="0.93")
        axes.set(title=f"{layers} layers, every run", xlabel="test loss")
    return figure


_LINES = {
    "mpelu-taylor": (COLORS[4], "MPELU, Taylor (the paper)"),
    "mpelu-exact": (COLORS[2], "MPELU, exact"),
    "mpelu-deep": (COLORS[0], "MPELU, deep"),
    "identity-orthogonal": (COLORS[3], "no activations"),
}
"""Starts that every depth has."""


def main() -> None:
    if sys.argv[1:2] == ["keep"]:
        keep([Path(each) for each in sys.argv[2:]])
        return
    page = DOCS / "depth.md"
    text = page.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{START}\n{table()}\n{END}{after}")
    drawings = {"theory": draw_theory, "start": draw_start, "losses": draw_losses}
    for name, drawing in drawings.items():
        drawing().savefig(DOCS / f"depth-{name}.png", dpi=110)
        print(f"written: docs/depth-{name}.png")


if __name__ == "__main__":
    main()
