"""Table 8: how many units of the 30-layer network have a small Taylor residual."""

from __future__ import annotations

from mpelu.lab.paper import untrained
from mpelu.lab.paper.untrained import LAYERS
from mpelu.lab.sweep.gather import Gathered
from mpelu.lab.sweep.results import Cell, Plot, Result, Series
from mpelu.lab.sweep.study import Options, Study

PAPER = {
    # residual: share of units at conv 1, 7, 14, 20, 27, in %; the paper prints 100 % as "1"
    0.01: ("51.24", "46.83", "56.70", "78.18", "89.45"),
    0.5: ("51.65", "50.00", "84.75", "99.60", "100"),
    2.0: ("52.11", "53.78", "97.09", "100", "100"),
    4.5: ("52.53", "57.54", "99.71", "100", "100"),
}
INITS = {"Taylor": "own", "exact": "exact"}


def measure(options: Options, seed: int) -> dict[str, dict[int, tuple[float, ...]]]:
    """Share of units, in %, whose residual is below each bound, by initialization and layer."""
    from mpelu.lab.inspecting import residual_histogram

    found = {}
    batches = None
    for name, init in INITS.items():
        chosen = untrained.config("mpelu", init, options, seed)
        batches = batches or untrained.images(chosen, options)
        model = untrained.build(chosen, batches[0])
        places = untrained.after_convolutions(model)
        histogram = residual_histogram(
            model, batches, layers=places.values(), residuals=tuple(PAPER)
        )
        shares = {layer.name: layer.above for layer in histogram.layers}
        found[name] = {
            number: tuple(100 * share for share in shares[place])
            for number, place in places.items()
        }
    return found


def summarize(gathered: Gathered) -> Result:
    study, options = gathered.study, gathered.options
    seeds = study.seed_count(options)
    measured = [measure(options, seed) for seed in range(seeds)]
    rows = []
    for index, (residual, printed) in enumerate(PAPER.items()):
        for number, text in zip(LAYERS, printed, strict=True):
            cells = [
                Cell(f"{residual:g}"),
                Cell(f"conv{number}"),
                Cell(text, float(text)),
            ]
            for name in INITS:
                values = tuple(each[name][number][index] for each in measured)
                mean = sum(values) / seeds
                cells.append(Cell(f"{mean:.2f}", mean, values))
            rows.append(tuple(cells))
    return Result(
        study=study.name,
        title=study.title,
        scale=options.scale,
        shrunk=untrained.shrunk(options),
        seeds=seeds,
        data="digits" if options.scale == "smoke" else "folder",
        header=("residual below", "layer", "paper, % of units", *(f"{n}, %" for n in INITS)),
        rows=tuple(rows),
        compare=((2, 3),),
        notes=(
            "for an input y of the activation, a residual below 0.01, 0.5, 2 or 4.5 means y above "
            "-0.1414, -1, -2 or -3",
            'the paper prints 100 % as "1"',
            untrained.MOMENT,
        ),
        plots=_plots(measured[0]),
    )


def _plots(measured: dict[str, dict[int, tuple[float, ...]]]) -> tuple[Plot, ...]:
    plots = []
    for name, layers in measured.items():
        series = [
            Series(f"residual < {residual:g}", list(layers), [each[i] for each in layers.values()])
            for i, residual in enumerate(PAPER)
        ]
        if name == "Taylor":
            text = PAPER[0.01]
            series.append(Series("paper, residual < 0.01", LAYERS, [float(each) for each in text]))
        plots.append(
            Plot(
                title=f"{name}: units with a small residual",
                x_label="convolution",
                y_label="share of units, %",
                series=tuple(series),
            )
        )
    return tuple(plots)


STUDY = Study(
    name="table8",
    title="Histogram of Taylor residuals in the 30-layer network",
    needs="any images",
    quantity="% of units",
    seeds={"smoke": 1, "small": 1, "full": 5},
    inspects=untrained.inspects,
    summarize=summarize,
)
