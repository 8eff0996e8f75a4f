"""Starting weights: those of a run or of a file, as far as they fit the network."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.lab.errors import UserError, listed, one_line, plural
from mpelu.lab.run import folder

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
