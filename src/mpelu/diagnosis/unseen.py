"""Parts of a model that can't be looked into."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mpelu.diagnosis.finding import Finding, listed

_UNSEEN = (torch.jit.ScriptModule, nn.RNNBase, nn.RNNCellBase, nn.Bilinear)
"""Classes whose calls inside aren't watched, and that aren't layers of one weight."""


def unseen_remarks(model: nn.Module) -> Iterator[Finding]:
    """Names the parts with parameters that no row is about."""
    names: list[str] = []
    texts = []
    for name, module in model.named_modules():
        is_inside = any(name.startswith(f"{each}.") for each in names)
        has_parameters = any(True for _ in module.parameters())
        if isinstance(module, _UNSEEN) and has_parameters and not is_inside:
            names.append(name)
            texts.append(f"`{name}` ({class_name(module)})")
    if texts:
        verb = "was" if len(texts) == 1 else "were"
        yield Finding(kind="remark", text=f"{listed(texts)} {verb} not looked into")


def class_name(module: nn.Module) -> str:
    """Also of what was scripted or traced."""
    return str(getattr(module, "original_name", type(module).__name__))
