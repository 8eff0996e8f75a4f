"""Table 7: mean and variance of activations in the 30-layer network."""

from __future__ import annotations

from pathlib import Path

from mpelu.lab.studies.paper import untrained
from mpelu.lab.studies.paper.untrained import DEEPEST, LAYERS
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import Cell, Plot, Result, Series, environment

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
    """Mean and variance after each convolution's activation, by network and number."""
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


def summarize(recipe: Recipe, options: Options, folder: Path) -> Result:
    seeds = recipe.seed_count(options)
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
        recipe=recipe.name,
        title=recipe.title,
        scale=options.scale,
        shrunk=untrained_shrunk(options),
        seeds=seeds,
        data="digits" if options.scale == "smoke" else "folder",
        header=("quantity", "after", *_header()),
        rows=tuple(rows),
        compare=((2, 3), (4, 5)),
        notes=(
            *_falls(measured[0]),
            "exact keeps a variance of 1; images on the scale of 0 to 255 come with thousands, "
            "which the layers bring down towards it",
            untrained.MOMENT,
        ),
        plots=_plots(measured[0]),
        environment=environment(),
    )


def _header() -> list[str]:
    found = []
    for name, (_, init) in NETWORKS.items():
        if init == "own":
            found.append(f"paper: {name}")
        found.append(name)
    return found


def untrained_shrunk(options: Options) -> tuple[str, ...]:
    count = f"{untrained.IMAGES[options.scale]} images (the paper doesn't say how many)"
    if options.scale != "smoke":
        return (count,)
    return (count, "digits in place of ImageNet", "a sixteenth of the width", "19x19 images")


def _falls(measured: dict[str, dict[int, tuple[float, float]]]) -> list[str]:
    notes = []
    for name, values in measured.items():
        first, last = values[1][1], values[DEEPEST][1]
        notes.append(f"{name}: variance at conv{DEEPEST} / at conv1 = {last / first:.1e}")
    return notes


def _plots(measured: dict[str, dict[int, tuple[float, float]]]) -> tuple[Plot, ...]:
    series = [
        Series(name, list(values), [variance for _, variance in values.values()])
        for name, values in measured.items()
    ]
    for activation, name in (("relu", "paper: ReLU"), ("mpelu", "paper: MPELU")):
        series.append(Series(name, LAYERS, [float(v) for v in PAPER["variance", activation]]))
    return (
        Plot(
            title="Variance of activations before training",
            x_label="convolution",
            y_label="variance of its activations",
            log_y=True,
            series=tuple(series),
        ),
    )


RECIPE = Recipe(
    name="table7",
    title="Mean and variance of activations in the 30-layer network",
    needs="a folder of images, --data-dir",
    quantity="mean, variance",
    seeds={"smoke": 1, "small": 1, "full": 5},
    looks_at=untrained.looks_at,
    summarize=summarize,
)
