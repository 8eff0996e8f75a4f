"""Table 7: mean and variance of activations in the 30-layer network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpelu.lab.paper import untrained
from mpelu.lab.paper.untrained import LAYERS, Values
from mpelu.lab.plots import Plot, Series
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.study import Study
from mpelu.lab.tables import Cell, Result

if TYPE_CHECKING:
    from torch import Tensor, nn

PAPER = {
    # at conv 1, 7, 14, 20, 27
    ("mean", "relu"): ("38.95", "41.25", "28.37", "22.52", "19.61"),
    ("mean", "mpelu"): ("25.31", "4.77", "0.13", "0.03", "0.003"),
    ("variance", "relu"): ("4196.36", "4603.98", "2594.84", "2381.22", "2627.62"),
    ("variance", "mpelu"): ("1840.65", "74.43", "0.71", "0.07", "0.01"),
}
NETWORKS = {
    # name: activation, initialization
    "ReLU, MSRA": ("relu", "own"),
    "MPELU, Taylor": ("mpelu", "own"),
    "MPELU, exact": ("mpelu", "exact"),
}


def summarize(gathered: Gathered) -> Result:
    measured = untrained.measure(gathered, NETWORKS, _mean_and_variance)
    header = ["quantity", "after"]
    for name, (_, init) in NETWORKS.items():
        header += [f"paper: {name}", name] if init == "own" else [name]
    rows = []
    for index, quantity in enumerate(("mean", "variance")):
        for place, number in enumerate(LAYERS):
            cells = [Cell(quantity), Cell(f"conv{number}")]
            for name, (activation, init) in NETWORKS.items():
                if init == "own":
                    printed = PAPER[quantity, activation][place]
                    cells.append(Cell(printed, float(printed)))
                cells.append(untrained.cell(measured, name, number, index, ".4g"))
            rows.append(tuple(cells))
    last = max(LAYERS)
    falls = [
        f"{name}: variance at conv{last} / variance at conv1 = {values[last][1] / values[1][1]:.1e}"
        for name, values in measured[0].items()
    ]
    return untrained.result(
        gathered,
        header=tuple(header),
        rows=tuple(rows),
        compare=((2, 3), (4, 5)),
        notes=(
            *([] if gathered.options.is_smoke else falls),
            "exact aims for a variance of 1; images with values from 0 to 255 start in the "
            "thousands, and the layers bring that down",
        ),
        plots=(_plot(measured[0]),),
    )


def _mean_and_variance(
    model: nn.Module, batches: list[Tensor], names: Sequence[str]
) -> dict[str, tuple[float, ...]]:
    from mpelu.lab.inspecting import activation_statistics

    rows = activation_statistics(model, batches, layers=names)
    return {row.name: (row.mean, row.variance) for row in rows}


def _plot(measured: Values) -> Plot:
    series = [
        Series(name, list(values), [each for _, each in values.values()], NETWORKS[name][0])
        for name, values in measured.items()
    ]
    for activation, name in (("relu", "paper: ReLU"), ("mpelu", "paper: MPELU")):
        printed = [float(each) for each in PAPER["variance", activation]]
        series.append(Series(name, LAYERS, printed, activation))
    return Plot(
        title="Variance of activations before training",
        x_label="convolution",
        y_label="variance of its activations",
        log_y=True,
        series=tuple(series),
    )


STUDY = Study(
    name="table7",
    title="Mean and variance of activations in the 30-layer network",
    needs="any images",
    quantity="mean, variance",
    seeds={"smoke": 1, "small": 1, "full": 5},
    inspects=untrained.inspects,
    summarize=summarize,
)
