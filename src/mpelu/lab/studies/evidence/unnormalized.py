"""Study B: activations in a network without normalization or shortcuts, and how fast they learn."""

from __future__ import annotations

from functools import partial

from mpelu.lab.studies.evidence import table
from mpelu.lab.studies.evidence.setting import UNNORMALIZED, arms, shrink
from mpelu.lab.studies.study import Setting, Study

REACH = 45.0
"""A test error in % that all reach; the table counts the steps, as the caption of figure 2 does."""
LEARNING_RATES = dict.fromkeys(("relu", "prelu", "elu", "silu", "mpelu"), 0.1)
"""The best of 0.05, 0.1 and 0.2 in the pilot."""
NAMES = ("relu", "prelu", "elu", "silu", "mpelu")


def settings(source: str) -> list[Setting]:
    return arms(UNNORMALIZED, NAMES, LEARNING_RATES)


STUDY = Study(
    name="study-no-bn",
    title="Activations in a network without batch normalization",
    needs="CIFAR-10",
    labels=("activation",),
    settings=settings,
    shrink=shrink,
    seeds={"smoke": 1, "small": 10, "full": 10},
    comparisons=tuple((name, "relu") for name in NAMES if name != "relu"),
    summarize=partial(table.summarize, reach=REACH),
)
