"""The paper's settings by name (its appendix, and the published files where it is silent)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpelu.lab.errors import choose


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """Values of Config, and what they are."""

    help: str
    values: dict[str, Any]


_RESNET = {
    "data": "cifar10", "preprocess": "channel", "augment": "pad-crop-flip",
    "model": "nopre-resnet-164", "lr": 0.1, "momentum": 0.9, "nesterov": True,
    "weight_decay": 1e-4, "activation_lr_mult": 5.0, "activation_decay_mult": 10.0,
}  # fmt: skip

PRESETS = {
    "nin-cifar10": Preset(
        help="NIN, whitened CIFAR-10, 28x28 crops, 120,000 iterations",
        values={
            "data": "cifar10", "preprocess": "gcn-zca", "augment": "crop-flip", "crop": 28,
            "model": "nin", "iterations": 120_000, "milestones": (100_000,), "batch_size": 128,
            "lr": 0.1, "momentum": 0.9, "weight_decay": 1e-4,
            "activation_lr_mult": 2.0, "activation_decay_mult": 0.0,
            "bias_lr_mult": 2.0, "bias_decay_mult": 0.0, "last_lr_mult": 0.1,
        },
    ),
    "resnet-cifar": Preset(
        help="residual networks on CIFAR, batch 128, 200 epochs, rate falls from epoch 81 and 122",
        values={**_RESNET, "batch_size": 128, "epochs": 200, "milestones": (80, 121)},
    ),
    "resnet-cifar-dagger": Preset(
        help="the same, batch 64, 300 epochs, rate falls from epoch 150 and 225",
        values={**_RESNET, "batch_size": 64, "epochs": 300, "milestones": (149, 224)},
    ),
    "plain-imagenet": Preset(
        help="the 15-layer network on 256x256 images, 224x224 crops, batch 64, 750,000 iterations",
        values={
            "data": "folder", "preprocess": "mean-image", "augment": "crop-flip",
            "image_size": 256, "crop": 224,
            "model": "plain-15", "iterations": 750_000, "milestones": (100_000, 600_000),
            "test_every": 10_000, "batch_size": 64, "lr": 0.01, "momentum": 0.9,
            "weight_decay": 5e-4, "activation_lr_mult": 2.0, "activation_decay_mult": 1.0,
            "bias_lr_mult": 2.0, "bias_decay_mult": 0.0,
        },
    ),
}  # fmt: skip


def preset(name: str) -> dict[str, Any]:
    """The values of a preset.

    Example:
        >>> preset("resnet-cifar")["milestones"]
        (80, 121)
    """
    choose("preset", name, PRESETS)
    return dict(PRESETS[name].values)
