"""Top-5 error of trained networks, which run folders don't have."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mpelu.lab.errors import UserError
from mpelu.lab.studies.gather import gather
from mpelu.lab.studies.recipe import Options, Recipe
from mpelu.lab.studies.result import Cell, Result
from mpelu.lab.studies.statistics import paper_value, text_of


def add(
    result: Result, recipe: Recipe, options: Options, folder: Path, paper: Mapping[str, str]
) -> Result:
    """The result with two columns more.

    Args:
        result: the table of top-1 errors.
        recipe: it is of.
        options: likewise.
        folder: of the recipe.
        paper: top-5 error as printed, by the first label of a row.
    """
    at = len(recipe.labels) + 2
    rows = []
    left_out = []
    for cells, row in zip(result.rows, gather(recipe, options, folder).rows, strict=True):
        values: tuple[float, ...] = ()
        for each in row.kept:
            if not each.diverged:
                try:
                    values += (top_5(each.run.path),)
                except UserError as error:
                    left_out.append(str(error))
        diverged = sum(each.diverged for each in row.kept)
        printed = paper[row.shrunk.setting.labels[0]]
        mean = sum(values) / len(values) if values else None
        added = (
            Cell(printed, paper_value(printed)),
            Cell(text_of(values, diverged), mean, values),
        )
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
    """In % of the test set; computed once and kept in RUN/top5.json."""
    kept = run / "top5.json"
    # A damaged file, as one that was being written when the machine stopped, is written anew.
    with contextlib.suppress(FileNotFoundError, ValueError, KeyError, TypeError):
        return float(json.loads(kept.read_text())["error"])
    import torch

    from mpelu.lab.data import load
    from mpelu.lab.training.trained import load_network

    restored = load_network(run)
    device = torch.device("cpu")
    dataset = load(restored.config, device)
    batches = torch.arange(dataset.test_count).split(restored.config.batch_size)
    wrong = 0
    with torch.no_grad():
        for images, labels in dataset.test(batches):
            best = restored.model.to(device)(images).topk(min(5, len(dataset.classes))).indices
            wrong += int((best != labels[:, None]).all(1).sum())
    error = 100 * wrong / dataset.test_count
    kept.write_text(json.dumps({"error": error}) + "\n")
    return error
