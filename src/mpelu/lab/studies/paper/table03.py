"""Table 3: leaky ReLU slopes in the 15-layer network on ImageNet."""

from __future__ import annotations

from mpelu.lab import paper
from mpelu.lab.studies import scale, summary
from mpelu.lab.studies.gather import Gathered
from mpelu.lab.studies.paper import top5
from mpelu.lab.studies.results import Result
from mpelu.lab.studies.study import Setting, Study

PAPER = {
    # network: slope, top-1, top-5
    "ReLU": (0.0, "37.66", "15.98"),
    "LReLU (A)": (0.1, "37.92", "16.26"),
    "LReLU (B)": (0.25, "38.54", "16.65"),
    "LReLU (C)": (0.5, "42.76", "20.18"),
    "LReLU (D)": (1.0, "60.27", "36.60"),
}


def settings(source: str) -> list[Setting]:
    return [
        Setting(
            name=f"slope-{slope:g}",
            labels=(name, f"{slope:g}"),
            paper=top_1,
            config=paper.plain(
                15,
                "leaky_relu" if slope else "relu",
                paper.GAUSSIAN,
                source,
                alpha=slope or None,
            ),
        )
        for name, (slope, top_1, _) in PAPER.items()
    ]


def summarize(gathered: Gathered) -> Result:
    """The usual table, with the top-5 error of the trained networks added."""
    printed = {name: top_5 for name, (_, _, top_5) in PAPER.items()}
    return top5.add(summary.table(gathered), gathered, printed)


STUDY = Study(
    name="table3",
    title="15-layer network on ImageNet by the slope of leaky ReLU",
    needs="ImageNet",
    labels=("network", "slope a"),
    quantity="top-1 error %",
    settings=settings,
    shrink=scale.plain_15,
    seeds={"smoke": 1, "small": 2, "full": 1},
    sources=paper.PLAIN_SOURCES,
    comparisons=(("slope-0", "slope-1"),),
    summarize=summarize,
)
