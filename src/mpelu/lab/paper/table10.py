"""Table 10: residual networks without bottleneck on CIFAR-10."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import table09
from mpelu.lab.paper.settings import resnet
from mpelu.lab.sweep.study import Setting

PAPER = (
    # name, figure, family (None: quoted), errors at DEPTHS, parameters at 110 layers
    ("ResNet, quoted", "4(a)", None,
     ("8.75", "7.51", "7.17", "6.97", "6.43 (6.61 ± 0.16)"), "1.73M"),
    ("ResNet, retrained", "4(a)", "resnet",
     ("8.16", "7.06", "6.99", "6.58", "6.27 (6.40 ± 0.18)"), "1.73M"),
    ("MPELU ResNet (non-bottle.)", "4(b)", "mpelu-resnet",
     ("7.71", "6.73", "6.26", "5.95", "5.35 (5.47 ± 0.14)"), "1.74M"),
)  # fmt: skip


def settings(source: str) -> list[Setting]:
    found = []
    for name, figure, family, errors, parameters in PAPER:
        for depth, error in zip(table09.DEPTHS, errors, strict=True):
            config = None if family is None else resnet(f"{family}-{depth}", source)
            labels = (name, figure, f"{depth}", parameters if depth == 110 else "")
            of = f"{family or 'quoted'}-{depth}"
            found.append(Setting(name=of, labels=labels, paper=error, config=config))
    return found


STUDY = replace(
    table09.STUDY,
    name="table10",
    title="Residual networks without bottleneck on CIFAR-10",
    labels=("network", "figure", "layers", "params, paper"),
    settings=settings,
    comparisons=(("mpelu-resnet-20", "resnet-20"), ("mpelu-resnet-110", "resnet-110")),
)
