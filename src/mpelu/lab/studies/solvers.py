"""How the paper trained (its appendix, and the published files for what the paper leaves out)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpelu.lab.config import Config

NIN = Config(
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
    test_every=1000,
)
"""Network in Network on CIFAR-10."""

IMAGENET = Config(
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
"""The plain networks on ImageNet."""

RESNET = Config(
    data="cifar10",
    preprocess="channel",
    augment="pad-crop-flip",
    epochs=200,
    # Epochs 81 and 122 are the first with the lower rate.
    milestones=(80, 121),
    batch_size=128,
    lr=0.1,
    momentum=0.9,
    nesterov=True,
    weight_decay=1e-4,
    activation_lr_mult=5.0,
)
"""Residual networks on CIFAR."""

RESNET_DAGGER = replace(RESNET, epochs=300, milestones=(149, 224), batch_size=64, accumulate=2)
"""The longer training of table 12: two GPUs had 32 images each, which is what batch normalization
saw, and sees in two parts of a batch."""


def resnet(model: str, reading: str, base: Config = RESNET, **changes: Any) -> Config:
    """A residual network in one of the readings.

    The published file multiplies the weight decay of alpha and beta by 10; the paper says only that
    there is weight decay.
    """
    decay = 10.0 if reading == "code" else 1.0
    return replace(base, model=model, activation_decay_mult=decay, **changes)


RESNET_READINGS = {
    "paper": "weight decay of alpha and beta as of all else; error at the end",
    "code": "weight decay of alpha and beta times 10; lowest error over the epochs",
}

GAUSSIAN, OURS, MSRA, LSUV = "Gaussian", "ours", "MSRA", "LSUV"
_METHODS = {GAUSSIAN: "gaussian", OURS: "taylor", MSRA: "msra", LSUV: "lsuv"}


def plain(
    depth: int,
    activation: str,
    method: str,
    reading: str,
    *,
    alpha: float | None = None,
    decay: float = 1.0,
    beta_decay: float | None = None,
    batch_norm: bool = True,
    mode: str = "fan_in",
) -> Config:
    """A plain network on ImageNet in one of the readings.

    Args:
        depth: 15, 30 or 52.
        activation: by name.
        method: of initialization, as the paper's tables call it.
        reading: "paper" initializes all layers by the method, and gives alpha and beta five times
            the learning rate; "code" takes the values of the published files.
        alpha: (initial) alpha.
        decay: multiplier of the weight decay of the activation's parameters, as printed.
        beta_decay: that of beta, if another.
        batch_norm: before activations, without dropout then.
        mode: n of the initialization's rule.
    """
    options: dict[str, Any] = {} if depth == 15 else {"batch_norm": batch_norm}
    if depth != 15 and batch_norm:
        options["dropout"] = 0.0
    changes: dict[str, Any] = {
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
    if reading == "code":
        changes |= _published(depth, activation, method, alpha, decay, mode)
    return replace(IMAGENET, **changes)


def _published(
    depth: int, activation: str, method: str, alpha: float | None, decay: float, mode: str
) -> dict[str, Any]:
    """What the published files have in other ways than the paper's text."""
    changes: dict[str, Any] = {"linear_std": (0.005, 0.005, 0.01)}
    if depth == 15 and method != GAUSSIAN:
        changes["linear_std"] = (0.01, 0.01, 0.01)
    if activation == "relu" and depth == 30:
        changes["linear_std"] = (0.01, 0.01, 0.001)
    if activation == "prelu" and method == MSRA and depth == 15:
        changes |= {"init_mode": "fan_out", "linear_std": (0.01, 0.01, 0.001)}
    elif method in (OURS, MSRA) and mode == "fan_in":
        # The files give every convolution the same factor, the first too, as the networks' own do.
        changes["init"] = "own"
    if activation == "mpelu":
        changes["activation_lr_mult"] = 2.0 if depth == 15 else 1.0
        if depth == 15 and method == OURS and alpha in (0.0, 0.25):
            changes["activation_decay_mult"] = 2 * decay
    return changes


PLAIN_READINGS = {
    "paper": "the initialization sets all layers; alpha and beta learn 5 times as fast",
    "code": "linear layers from the published Gaussians; alpha and beta learn 2 times as fast "
    "(30 layers: once); PReLU MSRA counts outputs; weight decay of alpha and beta from Taylor "
    "with alpha 0 or 0.25 times 2",
}
