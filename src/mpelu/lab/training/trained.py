"""Trained weights: the network of a run folder, and weights that another network starts from."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.lab import data, files
from mpelu.lab.config import Config
from mpelu.lab.data.registry import find
from mpelu.lab.errors import UserError, choose, listed, one_line, plural
from mpelu.lab.files import read_tensors
from mpelu.lab.references import check_trusted
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.training import network
from mpelu.lab.training.process import device_for


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


_MOST_NAMED = 5
_WRAPPERS = ("module.", "_orig_mod.")
"""What DistributedDataParallel and torch.compile put before every name."""


def load_initial(model: nn.Module, name: str) -> str:
    """Copies weights into a network, where name and shape agree.

    Args:
        model: the network, with weights of its own.
        name: a run folder, a .safetensors file, or a state_dict that torch.save wrote.

    Returns:
        What was taken and what was left out, in words.

    Raises:
        UserError: if the weights can't be read, or none of them fits.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        path = path / folder.WEIGHTS
    found = _read(path)
    for prefix in _WRAPPERS:
        if all(key.startswith(prefix) for key in found):
            found = {key.removeprefix(prefix): value for key, value in found.items()}
    own = model.state_dict()
    fitting = {
        key: value for key, value in found.items() if key in own and value.shape == own[key].shape
    }
    if not fitting:
        raise UserError(
            f"{path}: no tensor has the name and shape of one of the network; it has "
            f"{_named(list(found))}, the network {_named(list(own))}",
            field="initial_weights",
        )
    model.load_state_dict(fitting, strict=False)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    text = [f"{path} (SHA-256 {digest[:12]}): {len(fitting)} of {plural(len(own), 'tensor')}"]
    other = [
        f"{key} ({list(found[key].shape)}, here {list(own[key].shape)})"
        for key in found
        if key in own and key not in fitting
    ]
    for reason, names in (
        ("of another shape, so left as initialized", other),
        ("not in the file, so left as initialized", [key for key in own if key not in found]),
        ("not in the network", [key for key in found if key not in own]),
    ):
        if names:
            text.append(f"{reason}: {_named(names)}")
    return "; ".join(text)


def _read(path: Path) -> Mapping[str, Tensor]:
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"not found: {path}", field="initial_weights") from None
    except Exception as error:  # those of pickle are of many types
        raise _unreadable(path, one_line(error)) from error
    for key in ("state_dict", "model"):  # as some programs wrap it
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
    if not isinstance(found, dict) or not all(isinstance(each, Tensor) for each in found.values()):
        raise _unreadable(path, "expected a state_dict")
    return found


def _unreadable(path: Path, reason: str) -> UserError:
    return UserError(f"{path}: can't be read: {reason}", field="initial_weights")


def _named(names: list[str]) -> str:
    more = len(names) - _MOST_NAMED
    return listed([*names[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])], "and")
