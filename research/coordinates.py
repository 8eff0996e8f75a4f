"""Studies F and G: the coordinates in which MPELU is trained.

    mpelu reproduce research.coordinates:limits --data-dir DATA    # study F
    mpelu reproduce research.coordinates:grid --data-dir DATA      # study G

MPELU has two pairs of parameters for the same functions: the paper's alpha and beta, and slope and
rate. Study F asks whether networks that start at the paper's limits, PReLU and the identity, learn.
Study G trains both pairs from four starts, over learning rates and factors, with and without batch
normalization. The networks are those of studies A and B.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.sweep import Setting, Study
from research import summary
from research.activations import NORMALIZED, UNNORMALIZED, shrink

if TYPE_CHECKING:
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
    """Study F: MPELU ResNet (B), and MPELU that starts as PReLU everywhere, in slope and rate."""
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
    """Study G: both coordinates, four starts, learning rates and factors, two networks."""
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
