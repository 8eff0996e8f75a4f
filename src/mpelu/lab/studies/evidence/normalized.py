"""Study A: activations in a residual network with batch normalization."""

from __future__ import annotations

from mpelu.lab.studies.evidence import table
from mpelu.lab.studies.evidence.setting import (
    ACTIVATIONS,
    LEARNING_RATES,
    NORMALIZED,
    arms,
    shrink,
)
from mpelu.lab.studies.study import Setting, Study

NAMES = tuple(ACTIVATIONS)


def settings(source: str) -> list[Setting]:
    return arms(NORMALIZED, NAMES, LEARNING_RATES)


STUDY = Study(
    name="study-bn",
    title="Activations in a residual network with batch normalization",
    needs="CIFAR-10",
    labels=("activation",),
    settings=settings,
    shrink=shrink,
    seeds={"smoke": 1, "small": 10, "full": 10},
    comparisons=tuple((name, "relu") for name in NAMES if name != "relu"),
    summarize=table.summarize,
)
