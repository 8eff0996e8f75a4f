"""Study C: the paper's advice on MPELU, one change at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.studies.evidence import table
from mpelu.lab.studies.evidence.setting import ACTIVATIONS, LEARNING_RATES, NORMALIZED, shrink
from mpelu.lab.studies.study import Setting, Study

if TYPE_CHECKING:
    from mpelu import MPELU

BASE = "mpelu"
OWN_RATES = {"shared": 0.1, "design-b": 0.1}
"""Learning rates of the settings that diverge at that of (A): the best of 0.05, 0.1 and 0.2 in the
pilot."""
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("MPELU ResNet (A)", {}),
    "lr-1": ("learning rate of α and β × 1", {"activation_lr_mult": 1.0}),
    "no-decay": ("no weight decay of α and β", {"activation_decay_mult": 0.0}),
    "alpha-0.25": ("α starts at 0.25", {"alpha": 0.25}),
    "shared": ("one α and β per layer", {"activation": f"{__name__}:shared", "alpha": None}),
    "design-b": ("MPELU ResNet (B)", {"model": "mpelu-resnet-b-20"}),
    "no-act-after-addition": ("no activation after the addition", {"model": "mpelu-resnet-20"}),
}
"""Name, what changes in words, and the change. In (A) alpha and beta start at 1, with 5 times the
learning rate and the same weight decay as the weights."""


def shared(channels: int) -> MPELU:
    """An MPELU whose channels share alpha and beta."""
    from mpelu import MPELU

    return MPELU(1)


def changed(name: str, lr: float) -> Config:
    """The run of a setting at a learning rate."""
    return replace(NORMALIZED, **{**ACTIVATIONS[BASE], **CHANGES[name][1], "lr": lr})


def settings(source: str) -> list[Setting]:
    return [
        Setting(
            name=name,
            labels=(label,),
            paper="",
            config=changed(name, OWN_RATES.get(name, LEARNING_RATES[BASE])),
        )
        for name, (label, _) in CHANGES.items()
    ]


STUDY = Study(
    name="study-advice",
    title="The paper's advice on MPELU in a residual network",
    needs="CIFAR-10",
    labels=("setting",),
    settings=settings,
    shrink=shrink,
    seeds={"smoke": 1, "small": 5, "full": 5},
    comparisons=tuple((name, BASE) for name in CHANGES if name != BASE),
    summarize=table.summarize,
)
