"""Table 2: the 15-layer network on ImageNet by activation, weight decay and initialization."""

from __future__ import annotations

from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import GAUSSIAN, LABELS, MSRA, OURS, PLAIN_SOURCES, plain
from mpelu.lab.sweep.study import Setting, Study

PAPER = (
    # initialization, activation, alpha: initial value and decay multiplier, beta's decay, top-1
    (GAUSSIAN, "relu", 0.0, 0.0, 0.0, "37.66"),
    (GAUSSIAN, "mpelu", 0.0, 0.0, 0.0, "39.40"),
    (MSRA, "relu", 0.0, 0.0, 0.0, "37.45"),
    (GAUSSIAN, "mpelu", 0.0, 1.0, 0.0, "37.92"),
    (GAUSSIAN, "mpelu", 0.0, 1.0, 1.0, "37.61"),
    (OURS, "mpelu", 0.0, 1.0, 1.0, "37.41"),
    (GAUSSIAN, "prelu", 0.25, 0.0, 0.0, "39.48"),
    (GAUSSIAN, "mpelu", 0.25, 0.0, 0.0, "40.94"),
    (MSRA, "prelu", 0.25, 0.0, 0.0, "38.72"),
    (OURS, "mpelu", 0.25, 0.0, 0.0, "39.46"),
    (GAUSSIAN, "prelu", 0.25, 1.0, 1.0, "39.53"),
    (GAUSSIAN, "mpelu", 0.25, 1.0, 1.0, "37.81"),
    (MSRA, "prelu", 0.25, 1.0, 1.0, "38.57"),
    (OURS, "mpelu", 0.25, 1.0, 1.0, "37.47"),
    (GAUSSIAN, "elu", 1.0, 0.0, 0.0, "40.36"),
    (GAUSSIAN, "mpelu", 1.0, 0.0, 0.0, "39.53"),
    (OURS, "elu", 1.0, 0.0, 0.0, "39.83"),
    (OURS, "mpelu", 1.0, 0.0, 0.0, "38.42"),
    (GAUSSIAN, "mpelu", 1.0, 1.0, 1.0, "38.04"),
    (OURS, "mpelu", 1.0, 1.0, 1.0, "37.33"),
)


Case = tuple[str, str, float, float, float, str]


def setting(case: Case, source: str) -> Setting:
    """A row of the table; labels of parameters that the activation lacks are "-"."""
    method, activation, alpha, decay, beta_decay, printed = case
    learned, has_beta = activation in ("prelu", "mpelu"), activation == "mpelu"
    name = f"{activation}-{alpha:g}-{method.lower()}"
    if learned:
        name += f"-decay{decay:g}" + (f"{beta_decay:g}" if beta_decay != decay else "")
    shown = f"{alpha:g}/{decay:g}" if learned else "-" if activation == "relu" else f"{alpha:g}"
    config = plain(
        15, activation, method, source,
        alpha=None if activation == "relu" else alpha,
        decay=decay if learned else 1.0,
        beta_decay=beta_decay if has_beta and beta_decay != decay else None,
    )  # fmt: skip
    labels = (method, LABELS[activation], shown, f"1/{beta_decay:g}" if has_beta else "-")
    return Setting(name=name, labels=labels, paper=printed, config=config)


def settings(source: str) -> list[Setting]:
    return [setting(case, source) for case in PAPER]


STUDY = Study(
    name="table2",
    title="15-layer network on ImageNet by activation, initial alpha/decay, beta/decay and "
    "initialization",
    needs="ImageNet",
    labels=("init", "activation", "alpha/decay", "beta/decay"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain_15,
    seeds={"smoke": 1, "small": 1, "full": 1},
    sources=PLAIN_SOURCES,
    comparisons=(
        ("mpelu-1-ours-decay1", "elu-1-ours"),
        ("mpelu-1-ours-decay1", "mpelu-1-gaussian-decay1"),
        ("mpelu-0.25-gaussian-decay1", "mpelu-0.25-gaussian-decay0"),
    ),
)
