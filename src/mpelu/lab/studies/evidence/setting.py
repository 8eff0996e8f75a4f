"""The two settings that the studies share. Both were chosen in a pilot; see docs/results.

All 50,000 images of CIFAR-10 at 16x16 pixels, five epochs, one thread: about 85 seconds a run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpelu.lab.config import Config
from mpelu.lab.studies.study import Setting

EPOCHS = 5
_STEPS = 391
"""Of an epoch: 50,000 images in batches of 128."""

_BASE = Config(
    data="cifar10",
    image_size=16,
    batch_size=128,
    schedule="one-cycle",
    momentum=0.9,
    weight_decay=1e-4,
    threads=1,
)
NORMALIZED = replace(_BASE, model="resnet-20", model_options={"width": 8}, epochs=EPOCHS, lr=0.1)
"""ResNet-20 at half width, with batch normalization."""
UNNORMALIZED = replace(
    _BASE,
    model="nin",
    model_options={"width": 32, "dropout": 0.0},
    init="exact",
    epochs=None,
    iterations=EPOCHS * _STEPS,
    # Ten tests, as many as a curve needs.
    test_every=EPOCHS * _STEPS // 10,
    lr=0.05,
)
"""Network in Network at a sixth of its width, without normalization or dropout."""
ANCHOR = replace(NORMALIZED, image_size=None, model_options={})
"""ResNet-20 at full width on images of full size."""

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    # As its authors advise: no weight decay.
    "prelu": {
        "activation": "prelu", "alpha": 0.25,
        "activation_lr_mult": 1.0, "activation_decay_mult": 0.0,
    },
    "elu": {"activation": "elu", "alpha": 1.0},
    "silu": {"activation": "silu"},
    "mpelu": {"activation": "mpelu", "alpha": 1.0},
    "mpelu-0.25": {"activation": "mpelu", "alpha": 0.25},
}  # fmt: skip
"""What each arm changes. MPELU's parameters learn at 5 times the learning rate, with the same
weight decay as all others, as in the paper's residual networks."""
LABELS = {
    "relu": "ReLU",
    "prelu": "PReLU",
    "elu": "ELU",
    "silu": "SiLU",
    "mpelu": "MPELU (α = 1)",
    "mpelu-0.25": "MPELU (α = 0.25)",
}


LEARNING_RATES = {
    "relu": 0.4,
    "prelu": 0.8,
    "elu": 0.8,
    "silu": 0.8,
    "mpelu": 0.4,
    "mpelu-0.25": 0.4,
}
"""With batch normalization: the best of 0.2, 0.4 and 0.8 in the pilot."""


def arms(base: Config, names: tuple[str, ...], rates: dict[str, float]) -> list[Setting]:
    """The same network with each activation at the learning rate that suits it."""
    return [
        Setting(
            name=name,
            labels=(LABELS[name],),
            paper="",
            config=replace(base, lr=rates[name], **ACTIVATIONS[name]),
        )
        for name in names
    ]


def shrink(config: Config, scale: str) -> Config:
    """The studies are small as they are. A smoke test takes three steps on the digits."""
    if scale != "smoke":
        return config
    options = dict(config.model_options)
    if "width" in options or config.model.startswith(("resnet", "mpelu-resnet")):
        options["width"] = 4
    model = config.model.replace("-20", "-8")
    return replace(
        config,
        data="digits",
        image_size=8,
        train_limit=64,
        test_limit=32,
        batch_size=16,
        model=model,
        model_options=options,
        epochs=None,
        iterations=3,
        test_every=None,
        log_every=1,
    )
