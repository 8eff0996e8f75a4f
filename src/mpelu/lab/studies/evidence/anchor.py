"""Study E: ReLU and MPELU at full width and image size, as an anchor of the small settings."""

from __future__ import annotations

from mpelu.lab.studies.evidence import table
from mpelu.lab.studies.evidence.setting import ANCHOR, LEARNING_RATES, arms, shrink
from mpelu.lab.studies.study import Setting, Study


def settings(source: str) -> list[Setting]:
    return arms(ANCHOR, ("relu", "mpelu"), LEARNING_RATES)


STUDY = Study(
    name="study-anchor",
    title="ReLU and MPELU in ResNet-20 at full width and image size",
    needs="CIFAR-10",
    labels=("activation",),
    settings=settings,
    shrink=shrink,
    seeds={"smoke": 1, "small": 3, "full": 3},
    comparisons=(("mpelu", "relu"),),
    summarize=table.summarize,
)
