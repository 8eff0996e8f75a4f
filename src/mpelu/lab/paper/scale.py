"""How the paper's settings are scaled down: one function per family of networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpelu.lab.config import Config
from mpelu.lab.sweep.study import SMOKE

_SMOKE = {**SMOKE, "data": "digits", "data_dir": None, "milestones": (2,)}
_EPOCHS = 5
_STEPS = 391
"""Steps of an epoch of CIFAR-10 in batches of 128."""


def nin(config: Config, scale: str) -> Config:
    """A sixth of the width, images of half the size, and five epochs; see docs/results."""
    if scale == "smoke":
        crop = None if config.crop is None else 7
        return replace(config, **_SMOKE | {"crop": crop, "model_options": {"width": 8}})
    return replace(
        config,
        image_size=16,
        crop=None if config.crop is None else 14,
        model_options={"width": 32, "dropout": 0.0},
        # Layers have a sixth of the inputs. Their outputs keep their size.
        init_std=round(config.init_std * 6**0.5, 4),
        iterations=_EPOCHS * _STEPS,
        milestones=(4 * _STEPS,),
        test_every=_STEPS // 4,
        log_every=10,
    )


def plain_15(config: Config, scale: str) -> Config:
    """As `plain`, but trained for longer, which 15 layers leave time for."""
    return plain(config, scale, 1500)


def plain(config: Config, scale: str, iterations: int = 400) -> Config:
    """The same depth, but narrow, on small images."""
    smoke = scale == "smoke"
    options = dict(config.model_options)
    options |= {"width": 4 if smoke else 16, "fc_width": 16 if smoke else 256}
    options["input_size"] = 19 if smoke else 32
    if options.get("batch_norm", True):
        options["norm_momentum"] = 0.1
    changes: dict[str, Any] = {"crop": None, "model_options": options}
    if config.linear_std is not None and not smoke:
        # Linear layers have a quarter or a sixteenth of the inputs. Their outputs keep their size.
        first, *others = config.linear_std
        changes["linear_std"] = (2 * first, *(4 * std for std in others))
    if smoke:
        return replace(config, **_SMOKE | changes | {"image_size": 19, "augment": "none"})
    return replace(
        config,
        **changes,
        data="cifar10",
        image_size=None,
        augment="pad-crop-flip",
        train_limit=10_000,
        test_limit=2000,
        iterations=iterations,
        milestones=(iterations * 4 // 5,),
        test_every=100,
        log_every=10,
    )


_BASIC = {20: 20, 110: 32}
_BOTTLENECK = {164: 29, 1001: 47}


def residual(config: Config, scale: str) -> Config | None:
    """Shallower, narrower, on images of half the size, and five epochs; see docs/results.

    Depths between the smallest and the largest are left out at small scale, and so is CIFAR-100.
    """
    family, depth = config.model.rsplit("-", 1)
    bottleneck = int(depth) in _BOTTLENECK
    if scale == "smoke":
        shallow = (11 if bottleneck else 8) + (6 if depth == "110" else 9 * (depth == "1001"))
        options = {**config.model_options, "width": 4}
        model = f"{family}-{shallow}"
        return replace(config, **_SMOKE | {"model": model, "model_options": options})
    depths = _BOTTLENECK if bottleneck else _BASIC
    if int(depth) not in depths or config.data == "cifar100":
        return None
    return replace(
        config,
        model=f"{family}-{depths[int(depth)]}",
        model_options={**config.model_options, "width": 4 if bottleneck else 8},
        image_size=16,
        epochs=_EPOCHS,
        milestones=(3, 4),
    )
