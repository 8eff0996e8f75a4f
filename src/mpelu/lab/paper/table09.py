"""Table 9: ReLU, ELU, MPELU (A) and (B) in residual networks of 20 to 110 layers."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import scale
from mpelu.lab.paper.settings import RESNET_SOURCES, resnet
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Setting, Study
from mpelu.lab.sweep.table import last_error, lowest_error, tabulate
from mpelu.lab.tables import Result

DEPTHS = (20, 32, 44, 56, 110)
COORDINATES = (
    "MPELU ResNet (B) is trained in slope and rate. After the additions it starts at the paper's "
    "function, alpha 98 and beta 0.01: in these parameters a step of beta moves the slope at zero "
    "98 times as far as at alpha 1, and at the paper's learning rates no network here learns"
)

PAPER = {
    # family: name, errors at DEPTHS, parameters at 110 layers
    "resnet":
        ("ResNet", ("8.75", "7.51", "7.17", "6.97", "6.43 (6.61 ± 0.16)"), "1.73M"),
    "elu-resnet":
        ("ELU ResNet", ("7.980", "7.872", "7.714", "7.844", "8.11 (8.36 ± 0.29)"), "1.73M"),
    "mpelu-resnet-a":
        ("MPELU ResNet (A)", ("8.12", "7.35", "6.90", "6.72", "6.21 (6.89 ± 0.47)"), "1.74M"),
    "mpelu-resnet-b":
        ("MPELU ResNet (B)", ("8.16", "7.12", "6.67", "6.27", "5.64 (5.77 ± 0.15)"), "1.74M"),
}  # fmt: skip


def settings(source: str) -> list[Setting]:
    found = []
    for family, (name, errors, parameters) in PAPER.items():
        for depth, error in zip(DEPTHS, errors, strict=True):
            labels = (name, f"{depth}", parameters if depth == 110 else "")
            of = f"{family}-{depth}"
            config = resnet(of, source)
            if family == "mpelu-resnet-b":
                config = replace(config, coordinates="slope")
            found.append(Setting(name=of, labels=labels, paper=error, config=config))
    return found


def residual_table(gathered: Gathered) -> Result:
    """The table of residual networks.

    The published code prints the lowest error of all epochs; the paper doesn't say which it means.
    """
    code = gathered.study.source(gathered.options) == "code"
    is_by_slope = any(row.config and row.config.coordinates == "slope" for row in gathered.rows)
    notes = (COORDINATES,) if is_by_slope else ()
    return tabulate(gathered, value=lowest_error if code else last_error, notes=notes)


STUDY = Study(
    name="table9",
    title="ReLU, ELU and MPELU in residual networks on CIFAR-10",
    needs="CIFAR-10",
    labels=("network", "layers", "params, paper"),
    settings=settings,
    shrink=scale.residual,
    seeds={"smoke": 1, "small": 3, "full": 5},
    sources=RESNET_SOURCES,
    comparisons=(
        ("mpelu-resnet-a-110", "resnet-110"),
        ("mpelu-resnet-b-110", "resnet-110"),
        ("mpelu-resnet-b-110", "elu-resnet-110"),
    ),
    summarize=residual_table,
)
