"""Study D: how deep a plain network may be, by initialization, from 15 to 200 layers.

    mpelu reproduce research.depth:study --data-dir DATA
    mpelu reproduce research.depth:rivals --data-dir DATA

The rivals need AnyInit, which isn't a dependency: `pip install anyinit==0.4.0`.

No batch norm, no shortcuts. Near the identity a network trains at any depth because it is linear.
So every depth has two controls on the same budget: the network with identities instead of
activations, and softmax regression, which is the network of one layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.paper.settings import LABELS
from mpelu.lab.plots import Plot, Series
from mpelu.lab.sweep.gather import Gathered, test_loss
from mpelu.lab.sweep.study import Setting, Study
from mpelu.lab.tables import Cell, Result

if TYPE_CHECKING:
    import torch
    from torch import nn

DEPTHS = (60, 100, 200, 30, 15)
"""The ones that matter most first."""
GRID = (60, 100)
"""Depths with every initialization."""
RULED = (60, 100, 200)
"""Depths with every rule of others."""
RATES = (0.005, 0.015, 0.05)
LEARNS = 0.95
"""A setting learns if its test loss is below this share of the loss at chance."""

INITS: dict[str, dict[str, Any]] = {
    "MSRA": {"init": "msra"},
    "Taylor": {"init": "taylor"},
    "exact": {"init": "exact", "init_sized": True},
    "LSUV": {"init": "lsuv"},
    "critical": {"init": "critical"},
    "orthogonal": {"init": "exact", "init_sized": True, "init_distribution": "orthogonal"},
    "depth shape": {"init": "exact", "init_sized": True, "init_shape": "depth"},
    "orthogonal, depth shape": {
        "init": "exact", "init_sized": True, "init_distribution": "orthogonal",
        "init_shape": "depth",
    },
    "deep": {"init": "deep"},
}  # fmt: skip
"""What each initialization changes in the config."""
CONTROL = "identity"
SOFTMAX = "softmax"


def base() -> Config:
    """What all runs share."""
    return Config(
        data="cifar10",
        image_size=16,
        train_limit=20_000,
        test_limit=2000,
        model="plain-60",
        model_options={"small_maps": True, "width": 24},
        iterations=250,
        batch_size=64,
        lr=RATES[1],
        warmup=20,
        warmup_lr=0.002,
        schedule="cosine",
        clip_norm=1.0,
        log_every=10,
        threads=1,
    )


def arms(depth: int) -> list[tuple[str, str]]:
    """Activation and initialization of every setting at a depth."""
    if depth in GRID:
        return [
            *(("mpelu", name) for name in INITS),
            ("elu", "Taylor"), ("elu", "deep"),
            ("relu", "MSRA"), ("relu", "deep"),
            (CONTROL, "orthogonal"),
        ]  # fmt: skip
    rules = ["Taylor", "exact", "deep"]
    if depth in RULED:
        rules += ["MSRA", "LSUV"]
    return [*(("mpelu", name) for name in rules), (CONTROL, "orthogonal")]


def settings(source: str) -> list[Setting]:
    common = base()
    found = [
        Setting(
            name=SOFTMAX,
            labels=("1", "softmax regression", "-"),
            config=replace(common, model="plain-1", init="own"),
        )
    ]
    for depth in DEPTHS:
        for activation, name in arms(depth):
            config = replace(common, model=f"plain-{depth}", activation=activation, **INITS[name])
            found.append(
                Setting(
                    name=f"{depth}-{activation}-{name.replace(',', '').replace(' ', '-').lower()}",
                    labels=(f"{depth}", LABELS.get(activation, activation), name),
                    config=config,
                )
            )
    return found


def shrink(config: Config, scale: str) -> Config:
    """Nothing at small scale. A smoke test has 15 layers at most."""
    if scale != "smoke":
        return config
    depth = min(15, int(config.model.rpartition("-")[2]))
    return replace(
        config,
        data="digits",
        image_size=8,
        train_limit=64,
        test_limit=32,
        batch_size=16,
        iterations=3,
        warmup=0,
        model=f"plain-{depth}",
        model_options={**config.model_options, "width": 4},
        log_every=1,
    )


def summarize(gathered: Gathered) -> Result:
    """Test loss by depth and initialization, against the best of the controls."""
    study, options = gathered.study, gathered.options
    found = {row.name: row for row in gathered.rows}
    rows = []
    for row in gathered.rows:
        losses = tuple(test_loss(each.run) for each in row.ended)
        finite = tuple(each for each in losses if math.isfinite(each))
        mean = sum(finite) / len(finite) if finite else None
        rates = sorted({float(each.run.config["lr"]) for each in row.ended})
        rows.append(
            (
                *(Cell(label) for label in row.labels),
                Cell(", ".join(f"{rate:g}" for rate in rates)),
                Cell("-" if mean is None else f"{mean:.3f}", mean, finite),
                Cell(", ".join("diverged" if math.isinf(x) else f"{x:.3f}" for x in losses)),
                Cell(_verdict(row, found, options.is_smoke)),
                Cell(str(len(losses)), len(losses)),
            )
        )
    return gathered.result(
        shrunk=gathered.rows[0].shrunk,
        header=(*study.labels, "learning rate", "test loss", "all runs", "ahead of", "n"),
        rows=tuple(rows),
        notes=(
            f"each setting at the best of the learning rates {', '.join(f'{r:g}' for r in RATES)} "
            "on a seed that isn't in the table",
            "ahead of a control: the worst of its runs has a lower test loss than the control's "
            "best; softmax: softmax regression; linear: the same network without activations",
            *([f"left out: {'; '.join(gathered.left_out)}"] if gathered.left_out else []),
        ),
        plots=_plots(gathered),
    )


def losses_of(row: Setting | None) -> list[float]:
    """Test losses of a setting's runs; empty if there are none."""
    return [] if row is None else [test_loss(each.run) for each in row.ended]


def _verdict(row: Setting, found: dict[str, Setting], smoke: bool) -> str:
    """The controls that the worst run is ahead of; "chance" if it isn't even ahead of a guess."""
    losses = losses_of(row)
    if smoke or not losses or row.name == SOFTMAX:
        return "-"
    depth = row.labels[0]
    controls = {"softmax": SOFTMAX, "linear": f"{depth}-{CONTROL}-orthogonal"}
    ahead = [
        label
        for label, name in controls.items()
        if name != row.name and (others := losses_of(found.get(name))) and max(losses) < min(others)
    ]
    if ahead:
        return ", ".join(ahead)
    chance = math.log(row.ended[0].num_classes)
    return "a guess" if max(losses) < LEARNS * chance else "nothing"


def _plots(gathered: Gathered) -> tuple[Plot, ...]:
    """Mean test loss over depth, for the settings that every depth has."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for row in gathered.rows:
        depth, activation, name = row.labels
        losses = [each for each in losses_of(row) if math.isfinite(each)]
        if losses and row.name != SOFTMAX:
            label = "linear control" if activation == CONTROL else f"{activation}, {name}"
            lines.setdefault(label, []).append((int(depth), sum(losses) / len(losses)))
    series = [
        Series(label, [x for x, _ in sorted(points)], [y for _, y in sorted(points)])
        for label, points in lines.items()
        if len(points) > len(GRID)
    ]
    return (
        (
            Plot(
                title="Test loss of plain networks",
                x_label="layers",
                y_label="test loss, nats",
                series=tuple(series),
            ),
        )
        if series
        else ()
    )


def study() -> Study:
    """Every initialization of the package."""
    return Study(
        name="depth",
        title="Plain networks of 15 to 200 layers without batch norm or shortcuts",
        needs="CIFAR-10",
        labels=("layers", "activation", "init"),
        quantity="test loss",
        settings=settings,
        shrink=shrink,
        seeds={"smoke": 1, "small": 3, "full": 3},
        rates=RATES,
        summarize=summarize,
    )


def rivals() -> Study:
    """AnyInit and Tailored Activation Transformation, with the same budget, rates and seeds."""
    return replace(study(), name="depth-rivals", settings=lambda source: _rivals())


def _rivals() -> list[Setting]:
    return [
        Setting(
            name=f"{layers}-mpelu-{name.lower()}",
            labels=(f"{layers}", "MPELU", name),
            config=replace(base(), model=f"plain-{layers}", activation="mpelu", init=init),
        )
        for layers in RULED
        for name, init in RIVALS.items()
    ]


def anyinit_(model: nn.Module, generator: torch.Generator) -> None:
    """AnyInit's analytic mode, on images of the study's size."""
    import anyinit
    import torch

    seed = int(torch.randint(2**31, (), generator=generator))
    anyinit.initialize(model, "analytic", torch.zeros(2, 3, 16, 16), seed=seed)


def tat_(model: nn.Module, generator: torch.Generator) -> None:
    """Tailored Activation Transformation."""
    from research import tailoring

    tailoring.initialize_(model, input_shape=(3, 16, 16), generator=generator)


RIVALS = {"AnyInit": f"{__name__}:anyinit_", "TAT": f"{__name__}:tat_"}
