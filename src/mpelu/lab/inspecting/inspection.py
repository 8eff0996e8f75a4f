"""Inspects a network: signal, gradients, residuals, alpha and beta as JSON and as a figure.

`inspect_run` takes a trained network, `inspect_config` one before training. Both return an
`Inspection` and print nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mpelu.activations import learnable_parameters
from mpelu.graph import evaluating, unwrap
from mpelu.lab import data, files
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, plural
from mpelu.lab.files import seal_json
from mpelu.lab.inspecting.layers import activation_statistics, measure_gradients
from mpelu.lab.inspecting.residuals import residual_histogram
from mpelu.lab.references import check_trusted
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.training import network
from mpelu.lab.training.process import device_for
from mpelu.lab.training.trained import check_data, load_network
from mpelu.lab.training.trainer import example_images

FORMAT = 2
"""Version of the JSON object."""
_MOST_IMAGES = 64
_MOST_PIXELS = 2**19
"""Limits of a batch, so that a backward pass takes about as much memory as in training."""

Batch = tuple[Tensor, Tensor]
"""Images and labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inspection:
    """The result of inspecting a network."""

    title: str
    """Network, weights and images, in one line."""
    values: dict[str, Any]
    """The contents of inspect.json: plain numbers, strings, lists and dicts."""
    files: tuple[Path, ...]
    """The files that were written."""


def inspect_run(
    run: Path | str,
    weights: str = "final",
    images: int = 256,
    data_dir: str | None = None,
    out: Path | str | None = None,
    *,
    trust: bool = False,
) -> Inspection:
    """Inspects the trained network of a run, in evaluation mode, on images of its test set.

    Args:
        run: the run folder.
        weights: "final", "best" (lowest validation or test error) or "last" (newest checkpoint).
        images: number of test images.
        data_dir: directory of the data (default: the one used in training).
        out: directory for inspect.json and inspect.png (default: nothing is written). The report
            shows the files if it is the run folder.
        trust: import the code that the run's config names, such as "mine:net".

    Raises:
        UserError: if the run, its weights or its data can't be read, or `out` can't be written.

    Example:
        >>> found = inspect_run("runs/first", weights="best")  # doctest: +SKIP
        >>> found.values["layers"][0]["variance"]  # doctest: +SKIP
    """
    _check_images(images)
    run = Path(run)
    config = folder.read_config(run)
    # A run trained on a GPU can be inspected without one.
    check_trusted(run, config.references, trust, ("model", "activation", "convert", "data"))
    device = "cpu" if config.device == "cpu" else "auto"
    trained = load_network(run, weights, device, trust=trust)
    if data_dir is not None:
        config = replace(config, data_dir=data_dir)
    history = learned_parameters(run)
    dataset = data.load(config, trained.device)
    check_data(run, dataset)
    _make_directory(out)
    values = measure(
        trained.model,
        _test_batches(dataset, images),
        weights=weights,
        network=config.model,
        history=history,
    )
    return _finish(values, f"{weights} weights of {run.resolve().name}", config, out)


def inspect_config(config: Config, images: int = 256, out: Path | str | None = None) -> Inspection:
    """Inspects the network that a run of this config would start with.

    Its running statistics aren't trained yet, so batch norm uses each batch; dropout is off.

    Args:
        config: the config of the run.
        images: number of test images.
        out: directory for inspect.json and inspect.png (default: nothing is written).

    Raises:
        UserError: if network, initialization and data don't fit together, or `out` can't be
            written.
    """
    _check_images(images)
    model, batches = initial_network(config, images)
    _make_directory(out)
    with evaluating(model.modules()):
        values = measure(model, batches, weights="initial", network=config.model)
    return _finish(values, "initial weights", config, out)


def initial_network(config: Config, images: int) -> tuple[nn.Module, list[Batch]]:
    """Returns the network that a run of this config would start with, and batches of its test set.

    Raises:
        UserError: if network, initialization and data don't fit together.
    """
    network.check_name(config)
    device = device_for(config.device)
    dataset = data.load(config, device)
    example = example_images(config, dataset)
    channels, size = dataset.channels, dataset.size
    model = network.build(config, len(dataset.classes), channels, size, example)
    batches = _test_batches(dataset, images)
    smallest = min(len(batch) for batch, _ in batches)
    network.check_size(model, channels, size, smallest, len(dataset.classes))
    return model.to(device), batches


def measure(
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    weights: str,
    network: str,
    history: LearnedParameters | None = None,
) -> dict[str, Any]:
    """Returns the contents of inspect.json, as plain numbers, strings, lists and dicts.

    Statistics and residuals are over all batches, gradients of the mean cross entropy over the
    first.

    Args:
        model: classifier, in the mode to inspect it in.
        batches: images and labels.
        weights: origin of the weights: "final", "best", "last" or "initial".
        network: name of the network.
        history: learned parameters over training.
    """
    images = [batch for batch, _ in batches]
    first, labels = batches[0]
    rows = activation_statistics(model, images)
    gradients = measure_gradients(model, first, lambda output: cross_entropy(output, labels))
    by_call = {(each.name, each.call): each.gradient for each in gradients.layers}
    has_activations = any(row.kind == "activation" for row in rows)
    residual = asdict(residual_histogram(model, images)) if has_activations else None
    found = {
        "format": FORMAT,
        "which": weights,
        "network": network,
        "images": sum(len(batch) for batch in images),
        "layers": [{**asdict(row), "gradient": by_call.get((row.name, row.call))} for row in rows],
        "residual": residual,
        "gradients": {
            "images": len(first),
            "loss": gradients.loss,
            "parameters": gradients.parameters,
        },
        "activations": _activations(learned_parameters(model), history),
    }
    return {key: files.plain(value) for key, value in found.items()}


def _activations(now: LearnedParameters, history: LearnedParameters | None) -> dict[str, Any]:
    """Collects values per channel, their mean, minimum and maximum over training, and labels."""
    layers: dict[str, dict[str, Any]] = {}
    labels: dict[str, str] = {}
    for name, values in now.final.items():
        path, _, parameter = name.rpartition(".")
        layer = layers.setdefault(path, {"name": path, "history": {}})
        layer[parameter] = values.tolist()
        label = now.labels.get(name, parameter)
        if label not in labels.setdefault(parameter, label).split(" / "):
            labels[parameter] += f" / {label}"
        past = None if history is None else history.history.get(name)
        if past is not None:
            layer["history"][parameter] = {
                "mean": past.mean(1).tolist(),
                "least": past.amin(1).tolist(),
                "greatest": past.amax(1).tolist(),
            }
    return {
        "epochs": [] if history is None else list(history.epochs),
        "labels": labels,
        "layers": list(layers.values()),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnedParameters:
    """Values of learned parameters by name, such as "NAME.alpha" and "NAME.beta" of an MPELU."""

    epochs: tuple[int, ...]
    """Epochs of the run's snapshots, in increasing order; 0 is before training. Empty for a
    module."""
    history: dict[str, Tensor]
    """Tensors [epochs, channels] in float64."""
    final: dict[str, Tensor]
    """Tensors [channels] in float64, from the module or from the run's last snapshot."""
    labels: dict[str, str]
    """Labels by name, such as "α of MPELU"."""


def learned_parameters(source: nn.Module | Path) -> LearnedParameters:
    """Returns the learned parameters of activations.

    Args:
        source: module or run folder. The run may be in progress.

    Raises:
        UserError: if the path isn't a run folder, or a snapshot is damaged.

    Example:
        >>> found = learned_parameters(nn.Sequential(nn.Linear(8, 2), nn.PReLU(2)))
        >>> {name: values.tolist() for name, values in found.final.items()}
        {'1.weight': [0.25, 0.25]}
    """
    if isinstance(source, nn.Module):
        learned = list(learnable_parameters(unwrap(source)))
        return LearnedParameters(
            epochs=(),
            history={},
            final=_flat({each.name: each.parameter for each in learned}),
            labels={each.name: each.label for each in learned},
        )
    folder.read_config_values(source)
    paths = folder.find_snapshots(source)
    values: dict[str, list[Tensor]] = {}
    labels: dict[str, str] = {}
    shapes = None
    for path in paths.values():
        try:
            tensors, _, labels = checkpoint.read_snapshot(path)
        except ValueError as error:
            raise UserError(f"{source}: {error}") from None
        found = _flat(tensors)
        shapes = shapes or {name: value.shape for name, value in found.items()}
        if {name: value.shape for name, value in found.items()} != shapes:
            first = next(iter(paths.values()))
            raise UserError(f"{path}: expected the same activations as in {first.name}, got others")
        for name, value in found.items():
            values.setdefault(name, []).append(value)
    return LearnedParameters(
        epochs=tuple(paths),
        history={name: torch.stack(each) for name, each in values.items()},
        final={name: each[-1] for name, each in values.items()},
        labels=labels,
    )


def _flat(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: value.detach().to("cpu", torch.float64).reshape(-1) for name, value in values.items()
    }


def _check_images(images: int) -> None:
    if images < 1:
        raise UserError(f"expected a number >= 1, got {images}", field="images")


def _test_batches(dataset: data.Dataset, images: int) -> list[Batch]:
    """Returns images spread over the test set, since folders are sorted by class."""
    count = min(images, dataset.test_count)
    index = torch.arange(count) * dataset.test_count // count
    size = max(1, min(_MOST_IMAGES, _MOST_PIXELS // dataset.size**2))
    parts = -(-count // size)
    # Parts of about equal size, so that batch norm never sees a small remainder.
    return list(dataset.test(index.tensor_split(parts)))


def _make_directory(out: Path | str | None) -> None:
    """Makes the directory before the network is measured, so that errors come early."""
    if out is not None:
        with _writing(out):
            Path(out).mkdir(parents=True, exist_ok=True)


def _finish(
    values: dict[str, Any], origin: str, config: Config, out: Path | str | None
) -> Inspection:
    title = f"{config.model}, {origin}, {plural(values['images'], 'image')} of {config.data}"
    if out is None:
        return Inspection(title=title, values=values, files=())

    from mpelu.lab.inspecting.plots import draw_inspection, to_png

    picture = to_png(draw_inspection(values, title))
    written = (Path(out, folder.INSPECTION), Path(out, folder.INSPECTION_FIGURE))
    with _writing(out):
        files.write(written[0], seal_json(values, indent=None))
        files.write(written[1], picture)
    return Inspection(title=title, values=values, files=written)


@contextlib.contextmanager
def _writing(out: Path | str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{out}: can't be written: {error.strerror or error}") from error
