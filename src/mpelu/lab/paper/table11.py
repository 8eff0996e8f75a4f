"""Table 11: bottleneck variants with 164 layers on CIFAR-10, and two of them with warm-up."""

from __future__ import annotations

from dataclasses import replace

from mpelu.lab.paper import table09
from mpelu.lab.paper.settings import resnet
from mpelu.lab.sweep.study import Setting

DIVERGED = "diverged within few steps"

PAPER = (
    # name, figure, family, error, parameters
    ("the original Pre-ResNet", "4(c)", "preresnet", "5.46", "1.703M"),
    ("MPELU full pre-activ.", "4(d)", "mpelu-preresnet", "5.20 (5.32 ± 0.13)", "1.728M"),
    ("MPELU-only pre-activ. with BN", "5(a)", "mpelu-only-preresnet-bn", DIVERGED, "1.727M"),
    ("MPELU-only pre-activ.", "5(b)", "mpelu-only-preresnet", "5.49", "1.712M"),
    ("MPELU nopre with BN", "5(c)", "nopre-bn-resnet", DIVERGED, "1.713M"),
    ("MPELU nopre", "5(d)", "nopre-resnet", "4.87 (5.04 ± 0.14)", "1.696M"),
    ("MPELU nopre (no BN_1 and BN_end)", "-", "nopre-nobn1-nobnend-resnet", DIVERGED, "1.696M"),
    ("MPELU nopre (no BN_1)", "-", "nopre-nobn1-resnet", "5.29", "1.696M"),
    ("MPELU nopre without BN", "5(e)", "nopre-nobn-resnet", DIVERGED, "1.688M"),
)
WARMED_UP = (
    # from the text below the table: name, figure, family, what it says
    ("MPELU-only pre-activ. with BN, warm-up", "5(a)", "mpelu-only-preresnet-bn",
     "converges, worse than full pre-activ."),
    ("MPELU nopre with BN, warm-up", "5(c)", "nopre-bn-resnet", "converges well"),
)  # fmt: skip


def settings(source: str) -> list[Setting]:
    found = []
    for name, figure, family, error, parameters in PAPER:
        config, labels = resnet(f"{family}-164", source), (name, figure, parameters)
        found.append(Setting(name=family, labels=labels, paper=error, config=config))
    for name, figure, family, text in WARMED_UP:
        config = resnet(f"{family}-164", source, warmup=1, warmup_lr=0.01)
        of, labels = f"{family}-warmup", (name, figure, "")
        found.append(Setting(name=of, labels=labels, paper=text, config=config))
    return found


STUDY = replace(
    table09.STUDY,
    name="table11",
    title="Bottleneck variants with 164 layers on CIFAR-10",
    labels=("network", "figure", "params, paper"),
    settings=settings,
    seeds={"smoke": 1, "small": 2, "full": 5},
    comparisons=(("nopre-resnet", "preresnet"), ("nopre-resnet", "mpelu-preresnet")),
)
