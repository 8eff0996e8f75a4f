"""Table 7: mean and variance of activations in the 30-layer network."""

from __future__ import annotations

from mpelu.lab.paper import untrained
from mpelu.lab.paper.untrained import LAYERS
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.results import Cell, Plot, Result, Series
from mpelu.lab.sweep.study import Options, Study

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


def measure(options: Options, seed: int) -> dict[str, dict[int, tuple[float, float]]]:
    """Mean and variance of the activations after each convolution, by network and number."""
    from mpelu.lab.inspecting import activation_statistics

    found = {}
    batches = None
    for name, (activation, init) in NETWORKS.items():
        chosen = untrained.config(activation, init, options, seed)
        batches = batches or untrained.images(chosen, options)
        model = untrained.build(chosen, batches[0])
        places = untrained.after_convolutions(model)
        rows = activation_statistics(model, batches, layers=places.values())
        by_name = {row.name: (row.mean, row.variance) for row in rows}
        found[name] = {number: by_name[place] for number, place in places.items()}
    return found


def summarize(gathered: Gathered) -> Result:
    study, options = gathered.study, gathered.options
    seeds = study.seed_count(options)
    measured = [measure(options, seed) for seed in range(seeds)]
    rows = []
    for index, quantity in enumerate(("mean", "variance")):
        for place, number in enumerate(LAYERS):
            cells = [Cell(quantity), Cell(f"conv{number}")]
            for name, (activation, init) in NETWORKS.items():
                if init == "own":
                    printed = PAPER[quantity, activation][place]
                    cells.append(Cell(printed, float(printed)))
                values = tuple(each[name][number][index] for each in measured)
                mean = sum(values) / seeds
                cells.append(Cell(f"{mean:.4g}", mean, values))
            rows.append(tuple(cells))
    return Result(
        study=study.name,
        title=study.title,
        scale=options.scale,
        shrunk=untrained.shrunk(options),
        seeds=seeds,
        data="digits" if options.scale == "smoke" else "folder",
        header=("quantity", "after", *_header()),
        rows=tuple(rows),
        compare=((2, 3), (4, 5)),
        notes=(
            *([] if options.is_smoke else _falls(measured[0])),
            "exact aims for a variance of 1; images with values from 0 to 255 start in the "
            "thousands, and the layers bring that down",
            untrained.MOMENT,
        ),
        plots=_plots(measured[0]),
    )


def _header() -> list[str]:
    found = []
    for name, (_, init) in NETWORKS.items():
        if init == "own":
            found.append(f"paper: {name}")
        found.append(name)
    return found


def _falls(measured: dict[str, dict[int, tuple[float, float]]]) -> list[str]:
    """The factor by which the variance falls from the first convolution to the last."""
    last = max(LAYERS)
    return [
        f"{name}: variance at conv{last} / variance at conv1 = {values[last][1] / values[1][1]:.1e}"
        for name, values in measured.items()
    ]


def _plots(measured: dict[str, dict[int, tuple[float, float]]]) -> tuple[Plot, ...]:
    series = [
        Series(name, list(values), [each for _, each in values.values()], NETWORKS[name][0])
        for name, values in measured.items()
    ]
    for activation, name in (("relu", "paper: ReLU"), ("mpelu", "paper: MPELU")):
        printed = [float(v) for v in PAPER["variance", activation]]
        series.append(Series(name, LAYERS, printed, activation))
    return (
        Plot(
            title="Variance of activations before training",
            x_label="convolution",
            y_label="variance of its activations",
            log_y=True,
            series=tuple(series),
        ),
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
