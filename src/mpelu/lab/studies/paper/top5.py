"""Top-5 error of trained networks, which training doesn't measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mpelu.lab.errors import UserError
from mpelu.lab.run import files
from mpelu.lab.run import folder as runs
from mpelu.lab.studies.gather import Gathered, is_number
from mpelu.lab.studies.results import Cell, Result
from mpelu.lab.studies.statistics import paper_value, text_of


def add(result: Result, gathered: Gathered, printed: Mapping[str, str]) -> Result:
    """The result with two more columns: the paper's top-5 error and the measured one.

    Args:
        result: the table of top-1 errors.
        gathered: the runs it is made from.
        printed: the paper's top-5 error, by the first label of a row.
    """
    at = len(gathered.study.labels) + 2
    rows = []
    left_out = []
    for cells, row in zip(result.rows, gathered.rows, strict=True):
        values: tuple[float, ...] = ()
        for each in row.ended:
            if not each.diverged:
                try:
                    values += (top_5(each.run.path),)
                except UserError as error:
                    left_out.append(str(error))
        diverged = sum(each.diverged for each in row.ended)
        paper = printed[row.scaled.setting.labels[0]]
        mean = sum(values) / len(values) if values else None
        added = (Cell(paper, paper_value(paper)), Cell(text_of(values, diverged), mean, values))
        rows.append((*cells[:at], *added, *cells[at:]))
    names = ("paper, top-5 error %", "measured, top-5 error %")
    return replace(
        result,
        header=(*result.header[:at], *names, *result.header[at:]),
        rows=tuple(rows),
        compare=(*result.compare, (at, at + 1)),
        notes=(*result.notes, *(f"without top-5 error: {each}" for each in left_out)),
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
