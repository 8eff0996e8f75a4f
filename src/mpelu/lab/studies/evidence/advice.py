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
OWN: dict[str, tuple[float, float]] = {"shared": (0.1, 5.0), "design-b": (0.1, 0.0005)}
"""Learning rate, and its factor for alpha and beta, of the settings that diverge with those of (A):
the best ones in the pilot."""
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


def changed(name: str, **more: Any) -> Config:
    """The run of a setting, with more changes."""
    base = {**ACTIVATIONS[BASE], "lr": LEARNING_RATES[BASE]}
    return replace(NORMALIZED, **{**base, **CHANGES[name][1], **more})


def own(lr: float, factor: float) -> dict[str, float]:
    """What is changed for a learning rate, and its factor for alpha and beta."""
    return {"lr": lr, "activation_lr_mult": factor}


def settings(source: str) -> list[Setting]:
    return [
        Setting(
            name=name,
            labels=(label,),
            paper="",
            config=changed(name, **own(*OWN[name])) if name in OWN else changed(name),
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
