"""The paper's training settings, stated once. Studies and presets are made from them.

The paper's text and the code its authors published disagree in places, so every setting takes the
source to follow, "paper" or "code". What the paper leaves out is taken from the published code.

Importing this module doesn't import torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from mpelu.activations import TABLE
from mpelu.lab.config import Config
from mpelu.lab.errors import choose

LABELS = {name: record.label for name, record in TABLE.items()}
"""Activations as tables and figures write them."""

GAUSSIAN, OURS, MSRA, LSUV = "Gaussian", "ours", "MSRA", "LSUV"
"""Initializations as the paper's tables call them."""
_METHODS = {GAUSSIAN: "gaussian", OURS: "taylor", MSRA: "msra", LSUV: "lsuv"}

_NIN = Config(
    data="cifar10",
    preprocess="gcn-zca",
    model="nin",
    init="gaussian",
    iterations=120_000,
    milestones=(100_000,),
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    weight_decay=1e-4,
    bias_lr_mult=2.0,
    bias_decay_mult=0.0,
    last_lr_mult=0.1,
    activation_lr_mult=1.0,
)

NIN_SOURCES = {
    "code": "weights start from a Gaussian with std 0.05; alpha and beta learn at 2 times the "
    "learning rate, with no weight decay where alpha starts at 1 and 5 times the weight decay "
    "where it starts at 0.25",
    "paper": "weights start from a Gaussian with std 0.01; alpha and beta learn at 5 times the "
    "learning rate, with no weight decay",
}
"""How the sources differ. The default comes first: with std 0.01, hardly any signal reaches the
output of nine layers without normalization."""


def nin(activation: str, alpha: float | None, source: str, *, augmented: bool = True) -> Config:
    """Network in Network on CIFAR-10, augmented with random 28x28 crops and flips."""
    config = replace(
        _NIN,
        activation=activation,
        alpha=alpha,
        init_std=0.05 if source == "code" else 0.01,
        augment="crop-flip" if augmented else "none",
        crop=28 if augmented else None,
    )
    if activation != "mpelu":
        return config
    lr_mult, decay_mult = 5.0, 0.0
    if source == "code":
        lr_mult, decay_mult = 2.0, 5.0 if alpha == 0.25 else 0.0
    return replace(config, activation_lr_mult=lr_mult, activation_decay_mult=decay_mult)


_PLAIN = Config(
    data="folder",
    image_size=256,
    crop=224,
    preprocess="mean-image",
    augment="crop-flip",
    iterations=750_000,
    milestones=(100_000, 600_000),
    batch_size=64,
    lr=0.01,
    momentum=0.9,
    weight_decay=5e-4,
    bias_lr_mult=2.0,
    bias_decay_mult=0.0,
    activation_lr_mult=1.0,
    test_every=10_000,
)

PLAIN_SOURCES = {
    "paper": "the initialization applies to all layers; alpha and beta learn at 5 times the "
    "learning rate",
    "code": "linear layers start from the published Gaussians; alpha and beta learn at 2 times "
    "the learning rate (30 layers: 1 times); MSRA for PReLU uses FAN_OUT; with Taylor and alpha "
    "0 or 0.25, alpha and beta have 2 times the weight decay",
}


def plain(
    depth: int,
    activation: str,
    method: str,
    source: str,
    *,
    alpha: float | None = None,
    decay: float = 1.0,
    beta_decay: float | None = None,
    batch_norm: bool = True,
    mode: str = "fan_in",
) -> Config:
    """A plain network on ImageNet.

    Args:
        depth: 15, 30 or 52.
        activation: name of the activation.
        method: the initialization, as the paper's tables call it.
        source: "paper" or "code".
        alpha: (initial) alpha.
        decay: weight decay multiplier of the activation's parameters, as printed.
        beta_decay: weight decay multiplier of beta; None for the same as alpha's.
        batch_norm: normalize before activations, and leave out dropout.
        mode: what the initialization counts.
    """
    options: dict[str, Any] = {} if depth == 15 else {"batch_norm": batch_norm}
    if depth != 15 and batch_norm:
        options["dropout"] = 0.0
    values: dict[str, Any] = {
        "model": f"plain-{depth}",
        "model_options": options,
        "activation": activation,
        "alpha": alpha,
        "init": _METHODS[method],
        "init_mode": mode,
        "activation_decay_mult": decay,
        "beta_decay_mult": beta_decay,
        "activation_lr_mult": 5.0 if activation == "mpelu" else 1.0,
    }
    if source == "code":
        values |= _published(depth, activation, method, alpha, decay, mode)
    return replace(_PLAIN, **values)


def _published(
    depth: int, activation: str, method: str, alpha: float | None, decay: float, mode: str
) -> dict[str, Any]:
    """What the published files of a plain network have that the paper's text doesn't."""
    values: dict[str, Any] = {"linear_std": (0.005, 0.005, 0.01)}
    if depth == 15 and method != GAUSSIAN:
        values["linear_std"] = (0.01, 0.01, 0.01)
    if activation == "relu" and depth == 30:
        values["linear_std"] = (0.01, 0.01, 0.001)
    if activation == "prelu" and method == MSRA and depth == 15:
        values |= {"init_mode": "fan_out", "linear_std": (0.01, 0.01, 0.001)}
    elif method in (OURS, MSRA) and mode == "fan_in":
        # Every convolution, the first included, gets the factor of the activation. That is how
        # the networks initialize themselves.
        values["init"] = "own"
    if activation == "mpelu":
        values["activation_lr_mult"] = 2.0 if depth == 15 else 1.0
        if depth == 15 and method == OURS and alpha in (0.0, 0.25):
            values["activation_decay_mult"] = 2 * decay
    return values


_RESNET = Config(
    data="cifar10",
    preprocess="channel",
    augment="pad-crop-flip",
    epochs=200,
    # Epochs 81 and 122 are the first with the lower learning rate.
    milestones=(80, 121),
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-4,
    activation_lr_mult=5.0,
)
# Two GPUs had 32 images each, so batch normalization saw 32. In two parts of a batch it does too.
_DAGGER = replace(_RESNET, epochs=300, milestones=(149, 224), batch_size=64, accumulate=2)

RESNET_SOURCES = {
    "paper": "alpha and beta have the same weight decay as all other parameters; the error is "
    "that of the last epoch",
    "code": "alpha and beta have 10 times the weight decay; the error is the lowest of all epochs",
}


def resnet(model: str, source: str, *, dagger: bool = False, **changes: Any) -> Config:
    """A residual network on CIFAR; dagger: as the rows marked † of table 12, for 300 epochs."""
    decay_mult = 10.0 if source == "code" else 1.0
    base = _DAGGER if dagger else _RESNET
    return replace(base, model=model, activation_decay_mult=decay_mult, **changes)


class Preset(NamedTuple):
    """A setting of a study, for `mpelu train --preset`."""

    help: str
    config: Config


# They name no activation, so that `--activation` can choose one. Without it, the network has MPELU
# with the alpha of the setting.
_ANY: dict[str, Any] = {"activation": None, "alpha": None}
PRESETS = {
    "nin-cifar10": Preset(
        "NIN, CIFAR-10, 120k iterations (table 1, published code)",
        replace(nin("mpelu", 1.0, "code"), **_ANY),
    ),
    "resnet-cifar": Preset(
        "ResNets on CIFAR-10, 200 epochs (tables 9 to 12, paper)",
        resnet("nopre-resnet-164", "paper"),
    ),
    "resnet-cifar-dagger": Preset(
        "ResNets on CIFAR-10, 300 epochs (table 12, paper)",
        resnet("nopre-resnet-164", "paper", dagger=True),
    ),
    "plain-imagenet": Preset(
        "15 layers on ImageNet, 750k iterations (table 2, paper)",
        replace(plain(15, "mpelu", OURS, "paper", alpha=1.0), **_ANY),
    ),
}
"""By name. Each is a setting of a study at its default source, field by field."""


def preset(name: str) -> dict[str, Any]:
    """The fields that a preset sets to other values than Config's defaults.

    Example:
        >>> preset("resnet-cifar")["milestones"]
        (80, 121)
    """
    choose("preset", name, PRESETS, noun="preset")
    return PRESETS[name].config.non_defaults()
