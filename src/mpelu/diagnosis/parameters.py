"""Parameters that don't move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import learnable_parameters
from mpelu.diagnosis.rows import Finding, Measurement, listed, number

MOST_STEPS = 1e5
"""An activation's parameter hardly moves if a change by a tenth takes more steps than this."""
DECAY_STEPS = 10_000
"""Steps over which decoupled weight decay is counted."""
LEAST_LEFT = 0.8
"""It is a problem where it leaves less than this of an activation's parameter after those."""


_FEWEST = 256
"""Values of a weight, from which on their distribution can be told."""
_SHRINKING = ("scale", "rate", "shape")
"""Kinds of activations' parameters that are to stay away from zero, such as alpha and beta."""
_DECOUPLED = (torch.optim.AdamW, torch.optim.Adafactor)


def stuck_parameters(
    model: nn.Module,
    measured: Measurement,
    optimizer: torch.optim.Optimizer | None,
    has_loss: bool,
) -> Iterator[Finding]:
    """What keeps parameters from learning, a finding for each reason.

    Args:
        model: whose parameters they are.
        measured: of a copy of it.
        optimizer: that trains them, if it is known.
        has_loss: whether the gradients are those of a real loss, so that their size counts.
    """
    parameters, gradients = dict(model.named_parameters()), measured.parameters
    yield from _frozen(parameters)
    unused = [name for name, each in gradients.items() if each is None and name not in measured.cut]
    if unused:
        yield _remark(f"no output depends on {_names(unused)}, so no gradient arrives there")
    learned = {each.name: each.kind for each in learnable_parameters(model)}
    still = [
        name
        for name, each in gradients.items()
        if each is not None and (each.dim() > 1 or name in learned) and not each.any()
    ]
    if still:
        yield Finding(
            kind="parameters",
            text=f"{_names(still)} have gradient zero everywhere, so they don't learn",
            layer=still[0],
        )
    if optimizer is not None:
        yield from _optimized(parameters, gradients, learned, optimizer, has_loss)


def _frozen(parameters: dict[str, nn.Parameter]) -> Iterator[Finding]:
    frozen = {name: each for name, each in parameters.items() if not each.requires_grad}
    if not frozen:
        return
    count = sum(each.numel() for each in frozen.values())
    share = count / sum(each.numel() for each in parameters.values())
    untrained = [name for name, each in frozen.items() if _is_uniform(each)]
    if len(frozen) == len(parameters):
        yield Finding(
            kind="parameters",
            text="no parameter requires gradients, so nothing learns; model.requires_grad_(True) "
            "changes that",
        )
    elif untrained:
        yield Finding(
            kind="parameters",
            text=f"requires_grad is False for {_names(untrained)}, where the values are still the "
            "random ones that a layer starts with",
            layer=untrained[0],
        )
    else:
        yield _remark(
            f"requires_grad is False for {_names([*frozen])}: {share:.0%} of all values aren't "
            "trained"
        )


def _is_uniform(values: Tensor) -> bool:
    """Whether the values are uniformly distributed, as torch's layers start and trained ones never
    are: the fourth moment is 1.8 times the square of the second then, and 3 for a Gaussian."""
    if values.dim() < 2 or values.numel() < _FEWEST or not values.is_floating_point():
        return False
    values = values.detach().double()
    values = values - values.mean()
    ratio = (values.pow(4).mean() / values.square().mean().square()).item()
    return abs(ratio - 1.8) < 0.1


def _optimized(
    parameters: dict[str, nn.Parameter],
    gradients: dict[str, Tensor | None],
    learned: dict[str, str],
    optimizer: torch.optim.Optimizer,
    has_loss: bool,
) -> Iterator[Finding]:
    groups = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    trained = [name for name, each in parameters.items() if each.requires_grad]
    missing = [name for name in trained if id(parameters[name]) not in groups]
    if missing:
        yield Finding(
            kind="parameters",
            text=f"{_names(missing)} aren't in the optimizer, so they don't learn",
            layer=missing[0],
        )
    unmoved = [
        name
        for name in trained
        if id(parameters[name]) in groups and _rate(groups[id(parameters[name])]) == 0
    ]
    if unmoved:
        yield Finding(
            kind="parameters",
            text=f"{_names(unmoved)} have learning rate 0, so they don't learn",
            layer=unmoved[0],
        )
    slow, decayed = [], []
    left: dict[str, float] = {}
    for name in trained:
        gradient, group = gradients.get(name), groups.get(id(parameters[name]))
        if name not in learned or gradient is None or group is None or not _rate(group):
            continue
        value, size = _size(parameters[name]), _size(gradient)
        if _steps(value, size if has_loss else 1.0, group, optimizer) > MOST_STEPS:
            slow.append(name)
        decay = float(group.get("weight_decay", 0.0))
        if _is_decoupled(optimizer, group):
            if learned[name] not in _SHRINKING:
                continue
            left[name] = max(0.0, 1 - _rate(group) * decay) ** DECAY_STEPS if value else 1.0
        elif has_loss and _is_plain(optimizer) and decay * value > size:
            decayed.append(name)
    if slow:
        yield Finding(
            kind="parameters",
            text=f"{_names(slow)} hardly move: with this learning rate, a change by a tenth takes "
            f"more than {MOST_STEPS:,.0f} steps; mpelu.param_groups gives them a rate of their own",
            layer=slow[0],
        )
    shrunk = [name for name, each in left.items() if each < LEAST_LEFT]
    if shrunk:
        kind = type(optimizer).__name__
        own = f"torch.optim.{kind}" if type(optimizer).__module__.startswith("torch.") else kind
        worst = min(left.values())
        yield Finding(
            kind="parameters",
            text=f"weight decay multiplies {_names(shrunk)} by {number(worst)} in "
            f"{DECAY_STEPS:,} steps where the loss doesn't push back, however small the gradient; "
            f"mpelu.param_groups(model, lr=..., weight_decay=..., optimizer={own}) leaves them out",
            layer=shrunk[0],
        )
    if decayed:
        yield Finding(
            kind="parameters",
            text=f"{_names(decayed)} are pulled to 0 by weight decay more than the loss moves "
            "them; mpelu.param_groups(..., decay_mult=0) leaves it out",
            layer=decayed[0],
        )


def _steps(value: float, gradient: float, group: dict[str, Any], optimizer: Any) -> float:
    """Steps in one direction that change a value by a tenth, or by 0.1 if it is zero."""
    step = _rate(group) * (gradient if _is_plain(optimizer) else 1.0)
    step /= 1 - group.get("momentum", 0.0) if _is_plain(optimizer) else 1.0
    return 0.1 * (value or 1.0) / step if step > 0 else float("inf")


def _rate(group: dict[str, Any]) -> float:
    """The learning rate; where a schedule has begun, at least the one that it started from."""
    return max(float(group["lr"]), float(group.get("initial_lr", 0.0)))


def _is_decoupled(optimizer: Any, group: dict[str, Any]) -> bool:
    """Whether each step takes lr times weight decay of a value away, whatever its gradient is."""
    return bool(group.get("decoupled_weight_decay", isinstance(optimizer, _DECOUPLED)))


def _is_plain(optimizer: Any) -> bool:
    """Whether steps are in proportion to gradients, unlike those of Adam."""
    return isinstance(optimizer, torch.optim.SGD)


def _size(values: Tensor) -> float:
    """Root of the mean square."""
    return values.detach().double().square().mean().sqrt().item()


def _remark(text: str) -> Finding:
    return Finding(kind="remark", text=text)


def _names(names: list[str]) -> str:
    return listed([f"`{name}`" for name in names])
