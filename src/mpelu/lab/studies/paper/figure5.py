"""Figure 5: alternative residual functions."""

from __future__ import annotations

from mpelu.lab.studies.gather import Gathered
from mpelu.lab.studies.paper import blocks
from mpelu.lab.studies.results import Result
from mpelu.lab.studies.study import Study

PANELS = (
    ("(a) MPELU-only\npre-activ. with BN", "mpelu-only-preresnet-bn"),
    ("(b) MPELU-only\npre-activ.", "mpelu-only-preresnet"),
    ("(c) nopre with BN\nbefore addition", "nopre-bn-resnet"),
    ("(d) nopre-activ.", "nopre-resnet"),
    ("(e) nopre-activ.\nwithout BN", "nopre-nobn-resnet"),
)


def summarize(gathered: Gathered) -> Result:
    return blocks.result(gathered, PANELS)


STUDY = Study(
    name="figure5",
    title="Alternative residual functions",
    needs="nothing",
    quantity="",
    summarize=summarize,
)
