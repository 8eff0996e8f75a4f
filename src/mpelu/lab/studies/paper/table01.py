"""Table 1: Network in Network on CIFAR-10 by activation."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.config import Config
from mpelu.lab.studies import scale, solvers
from mpelu.lab.studies.paper.table02 import NAMES
from mpelu.lab.studies.recipe import Recipe, Setting

PAPER = {
    # activation, alpha: CIFAR-10, CIFAR-10 (augmented)
    ("relu", None): ("10.41", "8.81"),
    ("prelu", 0.25): ("9.02 (9.19 ± 0.15)", "7.28 (7.49 ± 0.14)"),
    ("elu", 1.0): ("9.39 (9.63 ± 0.23)", "7.77 (7.83 ± 0.05)"),
    ("mpelu", 1.0): ("9.06 (9.19 ± 0.11)", "7.37 (7.57 ± 0.16)"),
    ("mpelu", 0.25): ("9.10 (9.27 ± 0.12)", "7.30 (7.52 ± 0.18)"),
}

READINGS = {
    "code": "weights from a Gaussian of std 0.05; alpha and beta learn twice as fast, without "
    "weight decay from alpha 1 and with 5 times the weight decay from alpha 0.25",
    "paper": "weights from a Gaussian of std 0.01; alpha and beta learn 5 times as fast, without "
    "weight decay",
}


def config(activation: str, alpha: float | None, augmented: bool, reading: str) -> Config:
    """One network at full scale."""
    chosen = replace(
        solvers.NIN,
        activation=activation,
        alpha=alpha,
        init_std=0.05 if reading == "code" else 0.01,
        augment="crop-flip" if augmented else "none",
        crop=28 if augmented else None,
    )
    if activation != "mpelu":
        return chosen
    rate, decay = (2.0, 5.0 if alpha == 0.25 else 0.0) if reading == "code" else (5.0, 0.0)
    return replace(chosen, activation_lr_mult=rate, activation_decay_mult=decay)


def settings(reading: str) -> list[Setting]:
    return [
        Setting(
            name=f"{_name(activation, alpha)}{'-augmented' * augmented}",
            labels=(NAMES[activation], _parameters(activation, alpha), "yes" * augmented or "no"),
            paper=printed[augmented],
            config=config(activation, alpha, augmented, reading),
        )
        for (activation, alpha), printed in PAPER.items()
        for augmented in (False, True)
    ]


def _parameters(activation: str, alpha: float | None) -> str:
    if alpha is None:
        return "-"
    return f"alpha = {alpha:g}" + ("; beta = 1" if activation == "mpelu" else "")


def _name(activation: str, alpha: float | None) -> str:
    return f"mpelu-{alpha:g}" if activation == "mpelu" else activation


RECIPE = Recipe(
    name="table1",
    title="Network in Network on CIFAR-10 by activation",
    needs="CIFAR-10",
    labels=("NIN", "parameter(s)", "augmented"),
    settings=settings,
    shrink=scale.nin,
    seeds={"smoke": 1, "small": 1, "full": 5},
    readings=READINGS,
    comparisons=(
        ("mpelu-1", "elu"),
        ("mpelu-1-augmented", "elu-augmented"),
        ("mpelu-0.25-augmented", "prelu-augmented"),
    ),
)
