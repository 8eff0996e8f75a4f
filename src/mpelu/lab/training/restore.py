"""A trained network, out of its run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mpelu.lab import data
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, choose
from mpelu.lab.run import checkpoint, folder
from mpelu.lab.training import network
from mpelu.lab.training.evaluation import evaluate

__all__ = ["Restored", "evaluate", "load_network"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """A network and what it needs to be used."""

    config: Config
    source: Path
    """The file the weights are from."""
    model: nn.Module
    """In evaluation mode, on the CPU."""
    classes: tuple[str, ...]
    channels: int
    size: int
    preprocess: data.Preprocess


def load_network(run: Path, which: str = "final") -> Restored:
    """The network of a run.

    Args:
        run: the run folder.
        which: "final", the weights at the end, or the newest if the run hasn't ended; "last", the
            newest checkpoint; "best", the one with the lowest test error.

    Raises:
        UserError: if there is no such run, or no weights in it that can be read.

    Example:
        >>> restored = load_network(Path("run"))
        >>> restored.model(restored.preprocess(images)).argmax(1)
    """
    choose("which", which, ("final", "last", "best"))
    config = folder.read_config(run)
    about = folder.read_object(run, folder.DATA)
    try:
        classes = tuple(about["classes"])
        channels, size = about["channels"], about["size"]
        fitted = load_file(run / folder.PREPROCESS)
    except (KeyError, TypeError, OSError, SafetensorError) as error:
        raise UserError(
            f"{run}: expected data.json and preprocess.safetensors, got {error}"
        ) from error
    model = network.create(config, len(classes), channels, size)
    source, weights = _weights(run, which)
    try:
        model.load_state_dict(weights)
    except RuntimeError:
        raise UserError(f"{source}: expected the weights of {config.model}, got others") from None
    return Restored(
        config=config,
        source=source,
        model=model.eval(),
        classes=classes,
        channels=channels,
        size=size,
        preprocess=data.restore_preprocess(config, fitted),
    )


def _weights(run: Path, which: str) -> tuple[Path, dict[str, Tensor]]:
    final = run / folder.WEIGHTS
    if which == "final" and final.exists():
        try:
            return final, load_file(final)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{final}: expected weights, got {error}") from error
    paths = list(checkpoint.candidates(run))
    if which == "best":
        paths = [path for path in paths if path.stem == "best"]
    reasons = []
    for path in paths:
        try:
            return path, checkpoint.load(path)["model"]
        except (checkpoint.CheckpointError, KeyError) as error:
            reasons.append(f"{path.name} ({error})")
    outcome = folder.read_object(run, folder.STATUS).get("message") or "the run goes on"
    got = ", ".join(reasons) or f"none ({outcome})"
    raise UserError(f"{run}: expected a checkpoint that can be read, got {got}")


def check_data(run: Path, dataset: data.Dataset) -> None:
    """Raises UserError unless the data is what the run was trained on."""
    before = folder.read_object(run, folder.DATA).get("fingerprint")
    if before != dataset.fingerprint:
        raise UserError(
            f"{run}: expected the data the run was trained on (fingerprint {before}), got other "
            f"data ({dataset.fingerprint})"
        )
