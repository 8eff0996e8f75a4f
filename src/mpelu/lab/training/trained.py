"""Trained networks, read from their run folders."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.lab import data
from mpelu.lab.checksums import read_tensors
from mpelu.lab.config import Config
from mpelu.lab.data.registry import find
from mpelu.lab.errors import UserError, choose
from mpelu.lab.references import check_trusted
from mpelu.lab.run import checkpoint, files, folder
from mpelu.lab.training import network
from mpelu.lab.training.distributed import device_for


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedNetwork:
    """A network and what is needed to use it."""

    config: Config
    source: Path
    """The file the weights were read from."""
    model: nn.Module
    """In evaluation mode, on `device`."""
    device: torch.device
    classes: tuple[str, ...]
    channels: int
    size: int
    """Height and width of its input."""
    preprocess: data.Preprocess
    """From uint8 images to the network's input."""


def load_network(
    run: Path | str,
    weights: str = "final",
    device: str = "auto",
    *,
    trust: bool = False,
) -> TrainedNetwork:
    """Loads the network of a run.

    Args:
        run: the run folder.
        weights: "final", the weights at the end, or the newest ones if the run hasn't ended;
            "last", the newest checkpoint; "best", the checkpoint with the lowest
            validation error (test error, if the run has no validation images).
        device: "auto" (CUDA if there is a GPU, otherwise the CPU), "cpu", "cuda" or "mps".
        trust: import the code that the run's config names, such as "mine:net".

    Raises:
        UserError: if there is no such run, none of its weights can be read, or it names code that
            isn't trusted.

    Example:
        >>> trained = load_network("runs/first")  # doctest: +SKIP
        >>> trained.model(trained.preprocess(images)).argmax(1)  # doctest: +SKIP
    """
    choose("weights", weights, folder.WEIGHT_CHOICES)
    run = Path(run)
    config = folder.read_config(run)
    check_trusted(run, config.references, trust, ("model", "activation", "convert"))
    about = _read_data(run)
    try:
        classes = tuple(about["classes"])
        channels, size = about["channels"], about["size"]
        if not find(config.data).image_size:  # only the data says it
            config = replace(config, image_size=about["image_size"])
    except (KeyError, TypeError) as error:
        raise UserError(f"{run}: {folder.DATA} is missing or damaged ({error})") from error
    try:
        fitted, _ = read_tensors(run / folder.PREPROCESS)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from error
    with naming(run):
        model = network.create(config, len(classes), channels, size)
        preprocess = data.restore_preprocess(config, fitted, channels)
    source, values = _read_weights(run, weights)
    try:
        model.load_state_dict(values)
    except RuntimeError:
        raise UserError(
            f"{source}: expected the weights of {config.model}, got those of another network"
        ) from None
    place = device_for(device)
    return TrainedNetwork(
        config=config,
        source=source,
        model=model.eval().to(place),
        device=place,
        classes=classes,
        channels=channels,
        size=size,
        preprocess=preprocess.to(place),
    )


def check_data(run: Path, dataset: data.Dataset) -> None:
    """Raises UserError unless the data is what the run was trained on."""
    before = _read_data(run).get("fingerprint")
    if before is None:
        raise UserError(f"{run}: {folder.DATA} is missing or damaged")
    if before != dataset.fingerprint:
        raise UserError(
            f"{run}: expected the data the run was trained on (fingerprint {before}), got other "
            f"data ({dataset.fingerprint})"
        )


@contextlib.contextmanager
def naming(run: Path, given: Collection[str] = ()) -> Iterator[None]:
    """Errors about a run's config name the run, unless they are about a field the user gave."""
    try:
        yield
    except UserError as error:
        if error.field in given or str(error).startswith(str(run)):
            raise
        raise UserError(f"{run}: {error}") from error


def _read_data(run: Path) -> dict[str, Any]:
    try:
        return files.read_json(run / folder.DATA)
    except ValueError as error:
        raise UserError(f"{run}: {error}") from None


def _read_weights(run: Path, weights: str) -> tuple[Path, dict[str, Tensor]]:
    final = run / folder.WEIGHTS
    if weights == "final" and final.exists():
        try:
            return final, read_tensors(final).tensors
        except ValueError as error:
            raise UserError(f"{run}: {error} (mpelu verify tells what can be used)") from error
    paths = list(checkpoint.candidates(run))
    if weights == "best":
        paths = [path for path in paths if path.stem == "best"]
    reasons = []
    for path in paths:
        try:
            return path, dict(checkpoint.result_weights(checkpoint.load(path)))
        except (checkpoint.CheckpointError, KeyError) as error:
            reasons.append(f"{path.name} ({error})")
    message = folder.read_object(run, folder.STATUS).get("message") or "the run is still going on"
    got = ", ".join(reasons) or f"none ({message})"
    raise UserError(f"{run}: expected a readable checkpoint, got {got}")
