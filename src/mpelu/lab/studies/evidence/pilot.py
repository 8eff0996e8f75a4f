"""The pilot: learning rates for the other studies, on a seed of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from mpelu.lab.studies.evidence import advice, table
from mpelu.lab.studies.evidence.setting import ACTIVATIONS, LABELS, NORMALIZED, UNNORMALIZED, shrink
from mpelu.lab.studies.evidence.unnormalized import NAMES as WITHOUT_BN
from mpelu.lab.studies.study import Setting, Study

SETTINGS = {
    "bn": ("ResNet-20 with batch normalization", NORMALIZED, tuple(ACTIVATIONS), (0.2, 0.4, 0.8)),
    "no-bn": ("NIN without batch normalization", UNNORMALIZED, WITHOUT_BN, (0.05, 0.1, 0.2)),
}


ADVICE = (
    ("shared", 5.0, (0.05, 0.1, 0.2)),
    ("design-b", 5.0, (0.05, 0.1, 0.2)),
    ("design-b", 1.0, (0.1, 0.2, 0.4)),
    ("design-b", 0.1, (0.1, 0.2, 0.4)),
    ("design-b", 0.01, (0.1, 0.2, 0.4)),
    ("design-b", 0.0005, (0.1, 0.2, 0.4)),  # 5 / 98^2: as 5 is at alpha = 1
)
"""Settings of study C that diverge with the rates of the others: the factor of the learning rate
for alpha and beta, which the paper tuned for (B) and doesn't report, and learning rates."""


def settings(source: str) -> list[Setting]:
    activations = [
        Setting(
            name=f"{kind}-{name}-lr{lr:g}",
            labels=(network, LABELS[name], f"{lr:g}"),
            paper="",
            config=replace(base, lr=lr, **ACTIVATIONS[name]),
        )
        for kind, (network, base, names, rates) in SETTINGS.items()
        for lr in rates
        for name in names
    ]
    variants = [
        Setting(
            name=f"advice-{name}-x{factor:g}-lr{lr:g}",
            labels=(
                SETTINGS["bn"][0],
                f"{advice.CHANGES[name][0]}, α and β × {factor:g}",
                f"{lr:g}",
            ),
            paper="",
            config=advice.changed(name, **advice.own(lr, factor)),
        )
        for name, factor, rates in ADVICE
        for lr in rates
    ]
    return [*activations, *variants]


STUDY = Study(
    name="study-pilot",
    title="The pilot: learning rates for the other studies",
    needs="CIFAR-10",
    labels=("network", "activation", "learning rate"),
    settings=settings,
    shrink=shrink,
    seeds={"smoke": 1, "small": 1, "full": 1},
    first_seed=100,
    summarize=partial(table.summarize, has_figure=False),
)
