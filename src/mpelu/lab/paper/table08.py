"""Table 8: how many units of the 30-layer network have a small Taylor residual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpelu.lab.paper import untrained
from mpelu.lab.paper.untrained import LAYERS
from mpelu.lab.plots import Plot, Series
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Study
from mpelu.lab.tables import Cell, Result

if TYPE_CHECKING:
    from torch import Tensor, nn

PAPER = {
    # residual: share of units at conv 1, 7, 14, 20, 27, in %; the paper prints 100 % as "1"
    0.01: ("51.24", "46.83", "56.70", "78.18", "89.45"),
    0.5: ("51.65", "50.00", "84.75", "99.60", "100"),
    2.0: ("52.11", "53.78", "97.09", "100", "100"),
    4.5: ("52.53", "57.54", "99.71", "100", "100"),
}
NETWORKS = {"Taylor": ("mpelu", "own"), "exact": ("mpelu", "exact")}


def summarize(gathered: Gathered) -> Result:
    measured = untrained.measure(gathered, NETWORKS, _shares)
    rows = [
        (
            Cell(f"{residual:g}"),
            Cell(f"conv{number}"),
            Cell(text, float(text)),
            *(untrained.cell(measured, name, number, index, ".2f") for name in NETWORKS),
        )
        for index, (residual, printed) in enumerate(PAPER.items())
        for number, text in zip(LAYERS, printed, strict=True)
    ]
    return untrained.result(
        gathered,
        header=("residual below", "layer", "paper, % of units", *(f"{n}, %" for n in NETWORKS)),
        rows=tuple(rows),
        compare=((2, 3),),
        notes=(
            "for an input y of the activation, a residual below 0.01, 0.5, 2 or 4.5 means y above "
            "-0.1414, -1, -2 or -3",
            'the paper prints 100 % as "1"',
        ),
        plots=tuple(_plot(*each) for each in measured[0].items()),
    )


def _shares(
    model: nn.Module, batches: list[Tensor], names: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    """Share of units, in %, whose residual is below each bound."""
    from mpelu.lab.inspecting import residual_histogram

    histogram = residual_histogram(model, batches, layers=names, residuals=tuple(PAPER))
    return {each.name: tuple(100 * share for share in each.above) for each in histogram.layers}


def _plot(name: str, layers: dict[int, tuple[float, ...]]) -> Plot:
    series = [
        Series(f"residual < {residual:g}", list(layers), [each[i] for each in layers.values()])
        for i, residual in enumerate(PAPER)
    ]
    if name == "Taylor":
        printed = [float(each) for each in PAPER[0.01]]
        series.append(Series("paper, residual < 0.01", LAYERS, printed))
    return Plot(
        title=f"{name}: units with a small residual",
        x_label="convolution",
        y_label="share of units, %",
        series=tuple(series),
    )


STUDY = Study(
    name="table8",
    title="Histogram of Taylor residuals in the 30-layer network",
    needs="any images",
    quantity="% of units",
    seeds={"smoke": 1, "small": 1, "full": 5},
    inspects=untrained.inspects,
    summarize=summarize,
)
