"""A checkpoint of the original, loaded into the converted model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.converting.modules import MPELUByWidth, PendingMPELU
from mpelu.modules import MPELU


class LoadedKeys(NamedTuple):
    """Keys that model and checkpoint don't share."""

    new: list[str]
    """Alphas and betas that the checkpoint doesn't have; they stay as they are."""
    dropped: list[str]
    """Parameters of activations that were swapped, such as PReLU's. Where the conversion kept the
    function, alpha has taken them over."""


def load_state_dict(model: nn.Module, checkpoint: Mapping[str, Any]) -> LoadedKeys:
    """Loads the checkpoint of a model into its converted self.

    Only alphas and betas may be missing in the checkpoint. Everything is checked before anything
    is written. (The state_dict of a converted model loads with `model.load_state_dict`.)

    Args:
        model: converted by `convert`.
        checkpoint: the state_dict of the original, or of a converted model.

    Returns:
        The keys that the checkpoint doesn't have, and those that the model doesn't.

    Raises:
        ValueError: in one line, if any other key is missing or has another shape.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> checkpoint = model.state_dict()
        >>> conversion = mpelu.convert(model, torch.randn(3, 4), keep_function=True)
        >>> mpelu.load_state_dict(model, checkpoint).new
        ['1.alpha', '1.beta']
    """
    if not isinstance(checkpoint, Mapping):
        raise TypeError(
            f"load_state_dict: expected a state_dict, got {type(checkpoint).__name__}; read a file "
            "with torch.load(path, weights_only=True)"
        )
    own = model.state_dict()
    swapped = {
        path: module
        for path, module in model.named_modules()
        if type(module) in (MPELU, MPELUByWidth, PendingMPELU)
    }
    new = [key for key in own if key not in checkpoint and key.rpartition(".")[0] in swapped]
    dropped = [key for key in checkpoint if key not in own and _inside(key, swapped) is not None]
    _check_keys("missing", [key for key in own if key not in checkpoint and key not in new])
    _check_keys("unexpected", [key for key in checkpoint if key not in own and key not in dropped])
    for key, value in own.items():
        if key in new or is_lazy(value) or not isinstance(value, Tensor):
            continue
        given = checkpoint[key]
        if not isinstance(given, Tensor) or given.shape != value.shape:
            got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
            raise ValueError(
                f"load_state_dict: expected {key} of shape {list(value.shape)}, got {got}"
            )
    pending = [key for key in dropped if isinstance(_inside(key, swapped), PendingMPELU)]
    gone = [key for key in dropped if key not in pending]
    slopes = _slopes(gone, swapped, checkpoint)
    model.load_state_dict({k: v for k, v in checkpoint.items() if k not in gone}, strict=False)
    with torch.no_grad():
        for activation, values in slopes:
            activation.alpha.copy_(values.to(activation.beta) / activation.beta)
    return LoadedKeys(new, gone)


def _inside(key: str, swapped: Mapping[str, nn.Module]) -> nn.Module | None:
    """The swapped activation that a key of a checkpoint belongs to."""
    path = key.rpartition(".")[0]
    while path and path not in swapped:
        path = path.rpartition(".")[0]
    return swapped.get(path)


def _check_keys(what: str, keys: Sequence[str]) -> None:
    if keys:
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        raise ValueError(
            "load_state_dict: expected a checkpoint of the original, in which only alpha and beta "
            f"are missing; {what}: {', '.join(keys[:3])}{more}"
        )


def _slopes(
    keys: Sequence[str], swapped: Mapping[str, nn.Module], checkpoint: Mapping[str, Any]
) -> list[tuple[MPELU, Tensor]]:
    """MPELUs that started from a PReLU, with its slopes in the checkpoint."""
    found = []
    for key in keys:
        module = _inside(key, swapped)
        if module is None or not getattr(module, "keeps_slopes", False):
            continue
        for activation in (each for each in module.modules() if type(each) is MPELU):
            slopes = checkpoint[key]
            if slopes.numel() not in (1, activation.num_parameters):
                raise ValueError(
                    f"load_state_dict: expected {key} with 1 or {activation.num_parameters} "
                    f"slopes, got {slopes.numel()}"
                )
            found.append((activation, slopes))
    return found
