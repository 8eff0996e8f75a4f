"""Figure 4: various residual blocks."""

from __future__ import annotations

from mpelu.lab.studies.gather import Gathered
from mpelu.lab.studies.paper import blocks
from mpelu.lab.studies.results import Result
from mpelu.lab.studies.study import Study

PANELS = (
    ("(a) non-bottleneck", "resnet"),
    ("(b) MPELU\nnon-bottleneck", "mpelu-resnet"),
    ("(c) full pre-activ.\nbottleneck", "preresnet"),
    ("(d) MPELU full pre-activ.\nbottleneck", "mpelu-preresnet"),
)


def summarize(gathered: Gathered) -> Result:
    return blocks.result(gathered, PANELS)


STUDY = Study(
    name="figure4",
    title="Various residual blocks",
    needs="nothing",
    quantity="",
    summarize=summarize,
)
