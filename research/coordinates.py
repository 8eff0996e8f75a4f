"""Studies G and H: the coordinates in which MPELU is trained.

    mpelu reproduce research.coordinates:limits --data-dir DATA    # study G
    mpelu reproduce research.coordinates:grid --data-dir DATA      # study H

MPELU has two pairs of parameters for the same functions: the paper's alpha and beta, and slope and
rate. Study G asks whether networks that start at the paper's limits, PReLU and the identity, learn.
Study H trains both pairs from four starts, over learning rates and factors, with and without batch
normalization. The networks are those of studies A and B.

    python -m research.coordinates    # docs/coordinates.png: how far one step moves the function
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.sweep import Setting, Study
from research import summary
from research.activations import NORMALIZED, UNNORMALIZED, shrink

if TYPE_CHECKING:
    from torch import Tensor

    from mpelu import MPELU

COORDINATES = {"paper": "α and β", "slope": "slope and rate"}
STARTS = {
    "elu": ("ELU", 1.0, 1.0),
    "quarter": ("α = 0.25, β = 1", 0.25, 1.0),
    "prelu": ("PReLU", 25.0, 0.01),
    "identity": ("identity", 98.0, 0.01),
}
"""Where the parameters start: in words, and as the alpha and beta of the paper's coordinates."""
RATES = (0.05, 0.1, 0.2, 0.4, 0.8)
FACTORS = (1.0, 5.0)
"""Of the learning rate, for the activations' parameters."""
NETWORKS = {
    "bn": ("ResNet-20 with batch normalization", NORMALIZED),
    "no-bn": ("NIN without batch normalization", UNNORMALIZED),
}
GRID_EPOCHS = 2


def prelu(channels: int) -> MPELU:
    """An MPELU that starts as PReLU, in slope and rate."""
    from mpelu import MPELU

    return MPELU.prelu(channels)


def identity(channels: int) -> MPELU:
    """An MPELU that starts as the identity, in slope and rate."""
    from mpelu import MPELU

    return MPELU.identity(channels)


def limits() -> Study:
    """Study G: MPELU ResNet (B), and MPELU that starts as PReLU everywhere, in slope and rate."""
    return Study(
        name="study-limits",
        title="Networks that start at the limits of MPELU",
        needs="CIFAR-10",
        labels=("network", "learning rate"),
        settings=lambda source: [
            Setting(
                name=f"{name}-lr{lr:g}",
                labels=(label, f"{lr:g}"),
                config=replace(NORMALIZED, lr=lr, **values),
            )
            for name, label, values in _LIMITS
            for lr in (0.1, 0.4)
        ],
        shrink=shrink,
        seeds={"smoke": 1, "small": 5, "full": 5},
        summarize=partial(summary.summarize, has_figure=False),
    )


_LIMITS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "design-b",
        "MPELU ResNet (B)",
        {"model": "mpelu-resnet-b-20", "activation": "mpelu", "coordinates": "slope"},
    ),
    ("prelu", "PReLU everywhere, as MPELU", {"activation": f"{__name__}:prelu"}),
)


def grid() -> Study:
    """Study H: both coordinates, four starts, learning rates and factors, two networks."""
    return Study(
        name="study-grid",
        title="Coordinates of MPELU over learning rates, factors and starts",
        needs="CIFAR-10",
        labels=("network", "coordinates", "start", "factor", "learning rate"),
        settings=lambda source: [
            Setting(
                name=f"{kind}-{coordinates}-{start}-x{factor:g}-lr{lr:g}",
                labels=(network, words, STARTS[start][0], f"{factor:g}", f"{lr:g}"),
                config=_of_grid(base, coordinates, start, factor, lr),
            )
            for kind, (network, base) in NETWORKS.items()
            for lr in RATES
            for factor in FACTORS
            for start in STARTS
            for coordinates, words in COORDINATES.items()
        ],
        shrink=shrink,
        seeds={"smoke": 1, "small": 2, "full": 2},
        summarize=partial(summary.summarize, has_figure=False),
    )


def _of_grid(base: Config, coordinates: str, start: str, factor: float, lr: float) -> Config:
    """A run of the grid: two epochs of the setting of study A or B."""
    length: dict[str, Any] = {"epochs": GRID_EPOCHS}
    if base.iterations is not None:
        steps = base.iterations * GRID_EPOCHS // NORMALIZED.epochs  # type: ignore[operator]
        length = {"iterations": steps, "test_every": steps}
    if coordinates == "slope" and start in ("prelu", "identity"):
        activation: dict[str, Any] = {"activation": f"{__name__}:{start}"}
    else:
        _, alpha, beta = STARTS[start]
        activation = {
            "activation": "mpelu", "alpha": alpha, "beta": beta, "coordinates": coordinates,
        }  # fmt: skip
    return replace(base, lr=lr, activation_lr_mult=factor, **length, **activation)


STEP = 0.1
"""Learning rate of the step that the picture shows, before the factor of 5 for the parameters."""


def one_step(module: MPELU, target: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    """The parameters after a step of SGD towards another function, on normal inputs."""
    import torch

    y = torch.linspace(-5, 5, 4001, dtype=torch.float64)
    weights = torch.softmax(-(y**2) / 2, 0)
    loss = (weights * (module(y) - target(y)).square()).sum() / 2
    loss.backward()
    with torch.no_grad():
        for parameter in module.parameters():
            assert parameter.grad is not None
            parameter.sub_(FACTORS[-1] * STEP * parameter.grad)
    first, second = (parameter.item() for parameter in module.parameters())
    return first, second


def draw(path: Path) -> None:
    """Draws how far one step moves the function in either coordinates, from both limits."""
    import torch
    from matplotlib.figure import Figure

    from mpelu import MPELU
    from mpelu.lab.plots import COLORS

    y = torch.linspace(-5, 1, 601, dtype=torch.float64)
    starts = {"PReLU": (25.6302, 0.01, 0.25), "the identity": (98.0, 0.01, 1.0)}
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    for axes, (name, (alpha, beta, slope)) in zip(
        figure.subplots(1, 2), starts.items(), strict=True
    ):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the alpha that this picture is about
            paper = MPELU(alpha=alpha, beta=beta, dtype=torch.float64)
        ours = MPELU(slope=slope, rate=0.0, dtype=torch.float64)
        axes.plot(y, ours(y).detach(), color="0.6", linewidth=3, label=f"start: {name}")
        axes.plot(y, torch.nn.functional.elu(y), "k:", label="target: ELU")
        one_step(paper, torch.nn.functional.elu)
        one_step(ours, torch.nn.functional.elu)
        axes.plot(y, paper(y).detach(), "--", color="#0072B2", label="after a step of α and β")
        axes.plot(
            y, ours(y).detach(), color=COLORS["mpelu"], label="after a step of slope and rate"
        )
        axes.set(ylim=(-6, 1.2), xlabel="y", title=f"From {name}")
        axes.axhline(0, color="0.9", linewidth=0.8, zorder=0)
        axes.axvline(0, color="0.9", linewidth=0.8, zorder=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        words = f"α {paper.alpha.item():.3g}, β {paper.beta.item():.3g}"
        print(f"{name}: {words}; slope {ours.slope.item():.3g}, rate {ours.rate.item():.3g}")
    figure.axes[0].legend(loc="lower left", frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(Path(__file__).parents[1] / "docs" / "coordinates.png")
