"""Table 1: Network in Network on CIFAR-10 by activation."""

from __future__ import annotations

from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import LABELS, NIN_SOURCES, nin
from mpelu.lab.sweep.study import Setting, Study

PAPER = {
    # activation, alpha: CIFAR-10, CIFAR-10 (augmented)
    ("relu", None): ("10.41", "8.81"),
    ("prelu", 0.25): ("9.02 (9.19 ± 0.15)", "7.28 (7.49 ± 0.14)"),
    ("elu", 1.0): ("9.39 (9.63 ± 0.23)", "7.77 (7.83 ± 0.05)"),
    ("mpelu", 1.0): ("9.06 (9.19 ± 0.11)", "7.37 (7.57 ± 0.16)"),
    ("mpelu", 0.25): ("9.10 (9.27 ± 0.12)", "7.30 (7.52 ± 0.18)"),
}


def settings(source: str) -> list[Setting]:
    found = []
    for (activation, alpha), printed in PAPER.items():
        name, shown = activation, "-" if alpha is None else f"alpha = {alpha:g}"
        if activation == "mpelu":
            name, shown = f"mpelu-{alpha:g}", f"{shown}; beta = 1"
        for augmented, error in zip((False, True), printed, strict=True):
            config = nin(activation, alpha, source, augmented=augmented)
            labels = (LABELS[activation], shown, "yes" if augmented else "no")
            of = f"{name}{'-augmented' * augmented}"
            found.append(Setting(name=of, labels=labels, paper=error, config=config))
    return found


STUDY = Study(
    name="table1",
    title="Network in Network on CIFAR-10 by activation",
    needs="CIFAR-10",
    labels=("NIN", "parameter(s)", "augmented"),
    settings=settings,
    shrink=scale.nin,
    seeds={"smoke": 1, "small": 3, "full": 5},
    sources=NIN_SOURCES,
    comparisons=(
        ("mpelu-1", "elu"),
        ("mpelu-1-augmented", "elu-augmented"),
        ("mpelu-0.25-augmented", "prelu-augmented"),
    ),
)
