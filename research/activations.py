"""Studies A, B, C and E: what MPELU comes to in settings that two cores can train, and their pilot.

    mpelu reproduce research.activations:normalized --data-dir DATA      # study A
    mpelu reproduce research.activations:unnormalized --data-dir DATA    # study B
    mpelu reproduce research.activations:advice --data-dir DATA          # study C
    mpelu reproduce research.activations:anchor --data-dir DATA          # study E
    mpelu reproduce research.activations:pilot --data-dir DATA

All 50,000 images of CIFAR-10 at 16x16 pixels, five epochs, one thread: about 85 seconds a run. The
settings and their learning rates were chosen in the pilot; see docs/results.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mpelu.lab.config import Config
from mpelu.lab.sweep import Setting, Study
from research import summary

if TYPE_CHECKING:
    from mpelu import MPELU

EPOCHS = 5
_STEPS = 391
"""Steps of an epoch: 50,000 images in batches of 128."""

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
    test_every=EPOCHS * _STEPS // 10,
    lr=0.05,
)
"""Network in Network at a sixth of its width, without normalization or dropout."""
ANCHOR = replace(NORMALIZED, image_size=None, model_options={})
"""ResNet-20 at full width on images of full size."""
REACH = 45.0
"""Test error in % that all activations reach in study B; its table counts the steps, as the caption
of the paper's figure 2 does."""

ACTIVATIONS: dict[str, dict[str, Any]] = {
    "relu": {"activation": "relu"},
    # Its authors advise against weight decay.
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
NORMALIZED_RATES = {
    "relu": 0.4,
    "prelu": 0.8,
    "elu": 0.8,
    "silu": 0.8,
    "mpelu": 0.4,
    "mpelu-0.25": 0.4,
}
"""With batch normalization: the best of 0.2, 0.4 and 0.8 in the pilot."""
UNNORMALIZED_RATES = dict.fromkeys(("relu", "prelu", "elu", "silu", "mpelu"), 0.1)
"""Without it: the best of 0.05, 0.1 and 0.2."""

BASE = "mpelu"
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    BASE: ("MPELU ResNet (A)", {}),
    "lr-1": ("learning rate of α and β × 1", {"activation_lr_mult": 1.0}),
    "no-decay": ("no weight decay of α and β", {"activation_decay_mult": 0.0}),
    "alpha-0.25": ("α starts at 0.25", {"alpha": 0.25}),
    "shared": ("one α and β per layer", {"activation": f"{__name__}:shared", "alpha": None}),
    "design-b": ("MPELU ResNet (B)", {"model": "mpelu-resnet-b-20"}),
    "no-act-after-addition": ("no activation after the addition", {"model": "mpelu-resnet-20"}),
}
"""Study C: what changes, in words, and the change. In (A) alpha and beta start at 1, with 5 times
the learning rate and the same weight decay as the weights."""
_OWN_RATES: dict[str, tuple[float, float]] = {"shared": (0.1, 5.0), "design-b": (0.1, 0.0005)}
"""Learning rate, and its factor for alpha and beta, of the changes that don't train with those of
(A): the best ones in the pilot."""
_TRIED_RATES = (
    ("shared", 5.0, (0.05, 0.1, 0.2)),
    ("design-b", 5.0, (0.05, 0.1, 0.2)),
    ("design-b", 1.0, (0.1, 0.2, 0.4)),
    ("design-b", 0.1, (0.1, 0.2, 0.4)),
    ("design-b", 0.01, (0.1, 0.2, 0.4)),
    ("design-b", 0.0005, (0.1, 0.2, 0.4)),  # 5 / 98^2: like 5 at alpha = 1
)
"""What the pilot tries for them: the factor of the learning rate for alpha and beta, which the
paper doesn't give for (B), and learning rates."""


def normalized() -> Study:
    """Study A: activations in a residual network with batch normalization."""
    return Study(
        name="study-bn",
        title="Activations in a residual network with batch normalization",
        needs="CIFAR-10",
        labels=("activation",),
        settings=lambda source: _arms(NORMALIZED, NORMALIZED_RATES),
        shrink=shrink,
        seeds={"smoke": 1, "small": 10, "full": 10},
        comparisons=_to_relu(NORMALIZED_RATES),
        summarize=summary.summarize,
    )


def unnormalized() -> Study:
    """Study B: activations without normalization or shortcuts, and how fast they learn."""
    return Study(
        name="study-no-bn",
        title="Activations in a network without batch normalization",
        needs="CIFAR-10",
        labels=("activation",),
        settings=lambda source: _arms(UNNORMALIZED, UNNORMALIZED_RATES),
        shrink=shrink,
        seeds={"smoke": 1, "small": 10, "full": 10},
        comparisons=_to_relu(UNNORMALIZED_RATES),
        summarize=partial(summary.summarize, reach=REACH),
    )


def advice() -> Study:
    """Study C: the paper's advice on MPELU, one change at a time."""
    return Study(
        name="study-advice",
        title="The paper's advice on MPELU in a residual network",
        needs="CIFAR-10",
        labels=("setting",),
        settings=lambda source: [
            Setting(
                name=name,
                labels=(label,),
                config=_changed(name, *_OWN_RATES.get(name, ())),
            )
            for name, (label, _) in CHANGES.items()
        ],
        shrink=shrink,
        seeds={"smoke": 1, "small": 5, "full": 5},
        comparisons=tuple((name, BASE) for name in CHANGES if name != BASE),
        summarize=summary.summarize,
    )


def anchor() -> Study:
    """Study E: ReLU and MPELU at full width and image size, as an anchor of the small settings."""
    rates = {name: NORMALIZED_RATES[name] for name in ("relu", "mpelu")}
    return Study(
        name="study-anchor",
        title="ReLU and MPELU in ResNet-20 at full width and image size",
        needs="CIFAR-10",
        labels=("activation",),
        settings=lambda source: _arms(ANCHOR, rates),
        shrink=shrink,
        seeds={"smoke": 1, "small": 3, "full": 3},
        comparisons=_to_relu(rates),
        summarize=summary.summarize,
    )


def pilot() -> Study:
    """The pilot: learning rates for the other studies, on a seed of its own."""
    return Study(
        name="study-pilot",
        title="The pilot: learning rates for the other studies",
        needs="CIFAR-10",
        labels=("network", "activation", "learning rate"),
        settings=lambda source: _tried(),
        shrink=shrink,
        seeds={"smoke": 1, "small": 1, "full": 1},
        first_seed=100,
        summarize=partial(summary.summarize, has_figure=False),
    )


def _arms(base: Config, rates: dict[str, float]) -> list[Setting]:
    """The same network with each activation, at the learning rate that suits it."""
    return [
        Setting(
            name=name,
            labels=(LABELS[name],),
            config=replace(base, lr=rate, **ACTIVATIONS[name]),
        )
        for name, rate in rates.items()
    ]


def _to_relu(names: dict[str, float]) -> tuple[tuple[str, str], ...]:
    return tuple((name, "relu") for name in names if name != "relu")


def _changed(name: str, lr: float = NORMALIZED_RATES[BASE], factor: float | None = None) -> Config:
    """A run of study C.

    Args:
        name: the change.
        lr: learning rate.
        factor: factor of the learning rate for alpha and beta; None for the change's own.
    """
    values = {**ACTIVATIONS[BASE], "lr": lr, **CHANGES[name][1]}
    if factor is not None:
        values["activation_lr_mult"] = factor
    return replace(NORMALIZED, **values)


def _tried() -> list[Setting]:
    """The settings of the pilot."""
    with_bn = "ResNet-20 with batch normalization"
    networks = {
        "bn": (with_bn, NORMALIZED, NORMALIZED_RATES, (0.2, 0.4, 0.8)),
        "no-bn": (
            "NIN without batch normalization",
            UNNORMALIZED,
            UNNORMALIZED_RATES,
            (0.05, 0.1, 0.2),
        ),
    }
    activations = [
        Setting(
            name=f"{kind}-{name}-lr{lr:g}",
            labels=(network, LABELS[name], f"{lr:g}"),
            config=replace(base, lr=lr, **ACTIVATIONS[name]),
        )
        for kind, (network, base, names, rates) in networks.items()
        for lr in rates
        for name in names
    ]
    changes = [
        Setting(
            name=f"advice-{name}-x{factor:g}-lr{lr:g}",
            labels=(with_bn, f"{CHANGES[name][0]}, α and β × {factor:g}", f"{lr:g}"),
            config=_changed(name, lr, factor),
        )
        for name, factor, rates in _TRIED_RATES
        for lr in rates
    ]
    return [*activations, *changes]


def shared(channels: int) -> MPELU:
    """An MPELU whose channels share alpha and beta."""
    from mpelu import MPELU

    return MPELU(1)


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
