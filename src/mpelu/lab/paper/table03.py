"""Table 3: leaky ReLU slopes in the 15-layer network on ImageNet, with top-5 errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mpelu.lab import files
from mpelu.lab.errors import UserError
from mpelu.lab.paper import table02
from mpelu.lab.paper.settings import GAUSSIAN, plain
from mpelu.lab.run import folder as runs
from mpelu.lab.sweep.gather import Gathered, is_number
from mpelu.lab.sweep.statistics import paper_value, text_of
from mpelu.lab.sweep.study import Setting
from mpelu.lab.sweep.table import tabulate
from mpelu.lab.tables import Cell, Result

PAPER = {
    # network: slope, top-1, top-5
    "ReLU": (0.0, "37.66", "15.98"),
    "LReLU (A)": (0.1, "37.92", "16.26"),
    "LReLU (B)": (0.25, "38.54", "16.65"),
    "LReLU (C)": (0.5, "42.76", "20.18"),
    "LReLU (D)": (1.0, "60.27", "36.60"),
}


def settings(source: str) -> list[Setting]:
    found = []
    for name, (slope, top_1, _) in PAPER.items():
        activation = "leaky_relu" if slope else "relu"
        config = plain(15, activation, GAUSSIAN, source, alpha=slope or None)
        labels = (name, f"{slope:g}")
        found.append(Setting(name=f"slope-{slope:g}", labels=labels, paper=top_1, config=config))
    return found


def summarize(gathered: Gathered) -> Result:
    """The usual table, with the paper's top-5 error and that of the trained networks."""
    result = tabulate(gathered)
    at = len(gathered.study.labels) + 2
    rows, left_out = [], []
    for cells, row in zip(result.rows, gathered.rows, strict=True):
        values: tuple[float, ...] = ()
        for each in row.ended:
            if not each.diverged:
                try:
                    values += (top_5(each.run.path),)
                except UserError as error:
                    left_out.append(f"without top-5 error: {error}")
        diverged = sum(each.diverged for each in row.ended)
        _, _, text = PAPER[row.labels[0]]
        mean = sum(values) / len(values) if values else None
        added = (Cell(text, paper_value(text)), Cell(text_of(values, diverged), mean, values))
        rows.append((*cells[:at], *added, *cells[at:]))
    names = ("paper, top-5 error %", "measured, top-5 error %")
    return replace(
        result,
        header=(*result.header[:at], *names, *result.header[at:]),
        rows=tuple(rows),
        compare=(*result.compare, (at, at + 1)),
        notes=(*result.notes, *left_out),
    )


def top_5(run: Path) -> float:
    """Top-5 error in % on the test set, on the GPU if there is one.

    It is computed once and then kept in the run folder.

    Raises:
        UserError: if the network or its data can't be loaded.
    """
    kept = runs.read_object(run, runs.TOP5)
    if is_number(kept.get("error")):  # a damaged file is computed again
        return float(kept["error"])
    import torch

    from mpelu.lab.data import load
    from mpelu.lab.training.trained import load_network

    trained = load_network(run)  # a run of the paper, which names no code of its own
    dataset = load(trained.config, trained.device)
    batches = torch.arange(dataset.test_count).split(trained.config.batch_size)
    wrong = count = 0
    with torch.no_grad():
        for images, labels in dataset.test(batches):
            best = trained.model(images).topk(min(5, len(dataset.classes))).indices
            wrong += int((best != labels[:, None]).all(1).sum())
            count += len(labels)
    error = 100 * wrong / count
    files.write_json(run / runs.TOP5, {"error": error})
    return error


STUDY = replace(
    table02.STUDY,
    name="table3",
    title="15-layer network on ImageNet by the slope of leaky ReLU",
    labels=("network", "slope a"),
    settings=settings,
    seeds={"smoke": 1, "small": 2, "full": 1},
    comparisons=(("slope-0", "slope-1"),),
    summarize=summarize,
)
