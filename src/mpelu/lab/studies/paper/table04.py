"""Table 4: running time of ReLU, PReLU, ELU and MPELU."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from mpelu.lab.config import Config
from mpelu.lab.studies import scale, solvers
from mpelu.lab.studies.differences import differences
from mpelu.lab.studies.paper.table02 import NAMES
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import Cell, Result, environment
from mpelu.lab.timing import interleaved

PAPER = {"relu": "0.2310", "prelu": "0.2417", "elu": "0.2299", "mpelu": "0.2441"}
"""Seconds an iteration: Caffe on a Titan X, mean of 600k iterations, batch 64."""

ROUNDS = {"full": 100, "small": 9, "smoke": 3}


def config(activation: str, size: str) -> Config:
    """The 15-layer network at a scale."""
    full = solvers.plain(15, activation, solvers.OURS, "paper")
    if size == "full":
        return full
    if size == "smoke":
        return scale.plain(full, size)
    return replace(full, batch_size=8, model_options={"fc_width": 1024})


def _step(chosen: Config) -> Callable[[], None]:
    """A training step of the network on noise."""
    import torch
    from torch.nn.functional import cross_entropy

    from mpelu.lab.data.registry import find, image_sizes
    from mpelu.lab.training import network
    from mpelu.lab.training.optimizers import build_optimizer

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    channels, classes = find(chosen.data).channels, find(chosen.data).num_classes
    _, side = image_sizes(chosen)
    model = network.build(replace(chosen, init="own"), classes, channels, side)
    sgd = build_optimizer(model, chosen, channels, side)
    model.to(device)
    generator = torch.Generator().manual_seed(0)
    shape = (chosen.batch_size, channels, side, side)
    images = torch.randn(shape, generator=generator).to(device)
    labels = torch.randint(0, classes, (chosen.batch_size,), generator=generator).to(device)

    def step() -> None:
        sgd.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        sgd.step()
        loss.item()  # waits for a GPU

    return step


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    """Measures and compares."""
    configs = {name: config(name, options.scale) for name in PAPER}
    rounds = ROUNDS[options.scale]
    times = interleaved({name: _step(each) for name, each in configs.items()}, rounds)
    shrunk = differences(config("relu", "full"), configs["relu"])
    rows = []
    for name, printed in PAPER.items():
        median = statistics.median(times[name])
        # Of the same round: what else the machine does then slows both.
        ratio = statistics.median(
            own / relu for own, relu in zip(times[name], times["relu"], strict=True)
        )
        of_paper = float(printed) / float(PAPER["relu"])
        rows.append(
            (
                Cell(NAMES[name]),
                Cell(printed, float(printed)),
                Cell(f"{median:.4f}", median, tuple(times[name])),
                Cell(f"{of_paper:.2f}", of_paper),
                Cell(f"{ratio:.2f}", ratio),
                Cell(str(rounds), rounds),
            )
        )
    return Result(
        recipe=recipe.name,
        title=recipe.title,
        scale=options.scale,
        shrunk=(f"median of {rounds} steps in place of the mean of 600k", *shrunk),
        seeds=1,
        data="noise",
        header=(
            "activation",
            "paper, s/iteration",
            "measured, s/iteration",
            "paper, / ReLU",
            "measured, / ReLU",
            "n",
        ),
        rows=tuple(rows),
        compare=((3, 4),),
        notes=(
            "the four networks take turns, in random order; ratios are medians of ratios within "
            "a round",
            "paper: Caffe on a Titan X, batch 64; seconds compare machines, ratios activations",
        ),
        environment=environment(),
    )


RECIPE = Recipe(
    name="table4",
    title="Running time of a training step of the 15-layer network by activation",
    needs="nothing",
    quantity="s/iteration",
    summarize=summarize,
)
