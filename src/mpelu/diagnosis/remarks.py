"""What a diagnosis has to say besides: weights that start at zero, and parts that aren't seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from mpelu.diagnosis.inputs import Loss
from mpelu.diagnosis.measure import channels_of, measure
from mpelu.diagnosis.rows import Finding, Measurement, listed
from mpelu.graph import Inputs

_OPENED_STD = 0.02
_ROUNDS = 4


def measure_opened(
    probe: nn.Module, inputs: Inputs, targets: Any, loss: Loss | None
) -> tuple[Measurement, list[str]]:
    """The measurement of a copy whose zero-initialized weights have been opened.

    A head, a branch's last norm or its scale may start at zero, by design: it gets a gradient, and
    the layers before it get theirs from the second step on. Such weights get small random values
    before everything is measured.
    """
    opened: list[str] = []
    channels = channels_of(probe, inputs)
    measured = measure(probe, inputs, targets, loss, channels)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_ROUNDS):
        parameters = dict(probe.named_parameters())
        closed = [
            name
            for name, gradient in measured.parameters.items()
            if gradient is not None
            and not name.endswith("bias")
            and not parameters[name].any()
            and gradient.any()
        ]
        if not closed:
            break
        opened += closed
        with torch.no_grad():
            for name in closed:
                small = torch.randn(parameters[name].shape, generator=generator) * _OPENED_STD
                parameters[name].copy_(small)
        measured = measure(probe, inputs, targets, loss, channels)
    return measured, opened


def opened_remarks(opened: list[str]) -> Iterator[Finding]:
    """Says that they were measured with other values."""
    if not opened:
        return
    several = len(opened) > 1
    more = f" and {len(opened) - 1} more" if several else ""
    yield Finding(
        kind="remark",
        text=f"`{opened[0]}`{more} {'start' if several else 'starts'} at zero, as is common, and "
        f"{'get' if several else 'gets'} a gradient; it was measured with small values instead",
    )


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
