"""The diagnosis of a model that a name refers to, and its page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import mpelu
from mpelu.diagnosis import DiagnosedLayer, Diagnosis
from mpelu.lab import files, tables
from mpelu.lab.config import Config
from mpelu.lab.environment import describe_machine
from mpelu.lab.errors import UserError, one_line, plural
from mpelu.lab.inspecting.inspection import initial_network
from mpelu.lab.plots import Plot, Series, draw
from mpelu.lab.reporting import write_report
from mpelu.lab.tables import Cell, Result
from mpelu.lab.training import network

DIAGNOSIS = "diagnosis.json"
_MOST_SAMPLES, _FEWEST_SAMPLES = 32, 16
_MOST_VALUES = 2**20
"""Values of a batch; large images make a smaller one."""
_MEASURED = ("mean", "variance", "predicted", "signal", "gradient")

Say = Callable[[str], None]


def diagnose_model(
    name: str,
    shapes: Sequence[Sequence[int]],
    samples: int | None,
    say: Say,
    options: Mapping[str, Any],
) -> tuple[Diagnosis, str]:
    """The diagnosis of what a factory returns, on random inputs, and what they were.

    Args:
        name: package.module:factory, or a network of `mpelu.models`.
        shapes: shapes of the inputs without the batch. They are real numbers, or tokens if the
            model takes no real numbers.
        samples: size of the batch; None for one that suits the shapes.
        say: receives a line for each step.
        options: keyword arguments of the model; channels and size of an only image are added.

    Raises:
        UserError: if there is no such model, or it can't take the inputs.
    """
    if samples is not None and samples < 2:
        raise UserError(f"expected a number >= 2, got {samples}", field="samples")
    try:
        model = network.make(name, options, _facts(shapes))
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise UserError(one_line(error), field="model") from error
    count = samples or _samples_for(shapes)
    real = tuple(random_samples(shape, count, seed=i) for i, shape in enumerate(shapes))
    errors = []
    for inputs in (real, _tokens(model, shapes, count)):
        if inputs is None:
            continue
        try:
            found = mpelu.diagnose(model, inputs, progress=say)
        except (ValueError, TypeError, RuntimeError) as error:
            errors.append(error)
            continue
        kind = "tokens" if inputs is not real else "samples"
        of = " and ".join("x".join(map(str, shape)) for shape in shapes)
        return found, f"{plural(count, f'random {kind}'.removesuffix('s'))} of {of}"
    raise UserError(one_line(errors[0]).removeprefix("diagnose: "), field="input") from errors[0]


def diagnose_config(config: Config, samples: int | None, say: Say) -> tuple[Diagnosis, str]:
    """The diagnosis of the network that a run of this config would start with, on its data.

    Raises:
        UserError: if network and data don't fit together.
    """
    model, batches = initial_network(config, samples or _MOST_SAMPLES)
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    if samples is None:
        count = min(len(images), _samples_for([images.shape[1:]]))
        chosen = torch.arange(count) * len(images) // count  # of all classes, which are sorted
        images, labels = images[chosen], labels[chosen]
    if len(images) < 2:
        raise UserError(f"expected a number >= 2, got {len(images)}", field="samples")
    try:
        found = mpelu.diagnose(model, images, labels, progress=say)
    except ValueError as error:
        raise UserError(one_line(error), field="model") from error
    return found, f"{plural(len(images), 'image')} of {config.data}"


def random_samples(shape: Sequence[int], count: int, *, seed: int = 0) -> Tensor:
    """Random samples [count, *shape] with mean 0 and variance 1.

    Samples of three dimensions are smooth like photographs: noise at several resolutions. White
    noise would look the same everywhere, and after a pooling layer every sample like any other.

    Example:
        >>> random_samples((3, 32, 32), 8).shape
        torch.Size([8, 3, 32, 32])
    """
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(count, *shape, generator=generator)
    if len(shape) == 3 and min(shape[1:]) > 1:
        for size in (1, 2, 4, 8, 16, 32):
            if size < min(shape[1:]):
                coarse = torch.randn(count, shape[0], size, size, generator=generator)
                samples += F.interpolate(coarse, tuple(shape[1:]), mode="nearest")
    deviation, mean = torch.std_mean(samples)
    return (samples - mean) / deviation if samples.numel() > 1 else samples


def _facts(shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """What the shape of an image says: its channels, and its size if it is a square."""
    if len(shapes) != 1 or len(shapes[0]) != 3:
        return {}
    channels, height, width = shapes[0]
    return {"in_channels": channels, **({"input_size": height} if height == width else {})}


def _samples_for(shapes: Sequence[Sequence[int]]) -> int:
    values = sum(int(torch.Size(shape).numel()) for shape in shapes)
    return max(_FEWEST_SAMPLES, min(_MOST_SAMPLES, _MOST_VALUES // max(1, values)))


def _tokens(
    model: nn.Module, shapes: Sequence[Sequence[int]], count: int
) -> tuple[Tensor, ...] | None:
    """Random tokens of the model's largest vocabulary; None if it has no embedding."""
    sizes = [each.num_embeddings for each in model.modules() if isinstance(each, nn.Embedding)]
    if not sizes:
        return None
    generator = torch.Generator().manual_seed(0)
    most = max(sizes)  # the others are often positions or types
    return tuple(torch.randint(0, most, (count, *shape), generator=generator) for shape in shapes)


def write_page(found: Diagnosis, title: str, folder: Path) -> Path:
    """Writes diagnosis.json, the table, the figure and the page; returns the page's path.

    Raises:
        UserError: if they can't be written.
    """
    result = _result(found, title)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write(folder / DIAGNOSIS, to_json(found))
        figures = draw(result.plots, folder)
        tables.write(replace(result, figures=figures), folder)
    except OSError as error:
        raise UserError(
            f"{folder}: can't be written: {error.strerror or error}", field="out"
        ) from error
    return write_report(folder, folder).page


def to_json(found: Diagnosis) -> str:
    """The diagnosis as JSON; numbers that aren't finite become null."""
    return json.dumps(files.plain(found.to_dict()), indent=1, allow_nan=False) + "\n"


def tables_of(found: Diagnosis) -> list[tuple[tuple[str, ...], list[tuple[str, ...]], range]]:
    """Header, rows and columns of numbers of three tables: layers, units of activations, and what
    each initialization would give."""
    layers = [
        (str(row.position), row.name, *_texts(".2g", *(getattr(row, name) for name in _MEASURED)))
        for row in found.rows
    ]
    units = [
        (str(row.position), row.name, row.type, *_texts(".0%", row.dead, row.saturated, row.linear))
        for row in found.rows
        if row.kind == "activation"
    ]
    numbers = [
        _texts(".2g", each.predicted, each.signal, each.gradient_ratio) for each in found.trials
    ]
    trials = [
        (each.label, *texts, each.problem or "none")
        for each, texts in zip(found.trials, numbers, strict=True)
    ]
    of_units = ("layer", "activation", "type", "dead", "saturated", "linear")
    of_trials = ("initialization", "predicted", "signal", "gradient ratio", "problem")
    return [
        (("layer", "name", *_MEASURED), layers, range(2, 7)),
        (of_units, units, range(3, 6)),
        (of_trials, trials, range(1, 4)),
    ]


def _texts(digits: str, *values: float | None) -> tuple[str, ...]:
    return tuple("" if value is None else f"{value:{digits}}" for value in values)


def _result(found: Diagnosis, title: str) -> Result:
    (header, layers, _), (others, units, _), (names, trials, _) = tables_of(found)
    notes = [each.text for each in found.others]
    for label, *texts, problem in trials:
        pairs = zip(names[1:4], texts, strict=True)
        words = [f"{name} {text}" for name, text in pairs if text]
        notes.append(f"{label} would give: {', '.join([*words, f'problem {problem}'])}")
    shares = {each[:2]: each[3:] for each in units}
    rows = [
        (Cell(": ".join(row[:2])), *map(_cell, (*row[2:], *shares.get(row[:2], ("", "", "")))))
        for row in layers
    ]
    return Result(
        study="doctor",
        title=title,
        scale="full",
        data="",
        header=("layer", *header[2:], *others[3:]),
        rows=tuple(rows),
        headline=found.sentence,
        notes=tuple(notes),
        plots=_plots(found),
        environment=describe_machine(),
    )


def _cell(text: str) -> Cell:
    try:
        return Cell(text, float(text.removesuffix("%")) / (100 if text.endswith("%") else 1))
    except ValueError:
        return Cell(text)


def _plots(found: Diagnosis) -> tuple[Plot, ...]:
    layers = [row for row in found.rows if row.kind == "layer"]
    units = [row for row in found.rows if row.kind == "activation"]
    outputs = {"signal": "signal", "all values": "variance", "predicted": "predicted"}
    plots = [
        _plot("Outputs of layers", "variance", layers, outputs),
        _plot("Gradient at outputs", "mean square", layers, {"gradient": "gradient"}),
    ]
    if units:
        shares = {"dead": "dead", "saturated": "saturated", "linear": "linear"}
        plots.append(_plot("Units of activations", "share", units, shares, (0.0, 1.0)))
    return tuple(plots)


def _plot(
    title: str,
    label: str,
    rows: Sequence[DiagnosedLayer],
    lines: dict[str, str],
    y_range: tuple[float, float] | None = None,
) -> Plot:
    """A plot of these attributes, by their names; with a logarithmic axis where it has no range."""
    series, log = [], y_range is None
    for name, attribute in lines.items():
        values = [(row.position, getattr(row, attribute)) for row in rows]
        points = [
            (x, y) for x, y in values if y is not None and (y > 0 or not log) and y < math.inf
        ]
        if points:
            x, y = zip(*points, strict=True)
            series.append(Series(name, x, y))
    return Plot(
        title=title, x_label="layer", y_label=label, log_y=log, y_range=y_range,
        series=tuple(series),
    )  # fmt: skip


def parse_shape(text: str) -> tuple[int, ...]:
    """The shape of an input, such as 3x224x224.

    Raises:
        UserError: for anything else.

    Example:
        >>> parse_shape("3x224x224"), parse_shape("64")
        ((3, 224, 224), (64,))
    """
    parts = text.lower().split("x")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UserError(f"expected a shape such as 3x224x224, got {text!r}", field="input")
    return tuple(int(part) for part in parts)
