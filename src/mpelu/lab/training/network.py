"""The network of a config, with its initial weights: a function of the config and the seed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mpelu import init, models
from mpelu.init.rules import GAUSSIAN_STD
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError
from mpelu.lab.training.randomness import mix
from mpelu.models import registry

_OWN_FIELDS = ("activation", "alpha", "beta")


def check_name(config: Config) -> None:
    """Raises UserError unless there is such a network."""
    try:
        registry.find(config.model)
    except ValueError as error:
        raise UserError(_one_line(error)) from error


def create(config: Config, classes: int, channels: int, size: int) -> nn.Module:
    """The network as `mpelu.models` builds it, for data of these classes, channels and size.

    Raises:
        UserError: for a network or option there isn't, or one that doesn't fit the data.
    """
    options = dict(config.model_options)
    for name in _OWN_FIELDS:
        if name in options:
            raise UserError(f"model_options: expected {name} as an option of its own, got it here")
    for name, value in {"num_classes": classes, "in_channels": channels}.items():
        if options.setdefault(name, value) != value:
            raise UserError(
                f"model_options: expected {name}={value} as the data have, got {options[name]!r}"
            )
    try:
        family, _ = registry.find(config.model)
        if "input_size" in inspect.signature(family.build).parameters:
            options.setdefault("input_size", size)
        model = models.create(
            config.model,
            activation=config.activation,
            alpha=config.alpha,
            beta=config.beta,
            **options,
        )
    except (ValueError, TypeError) as error:
        raise UserError(_one_line(error)) from error
    if config.gradient_checkpointing:
        if not hasattr(model, "gradient_checkpointing"):
            raise UserError(
                f"expected a residual network, which can recompute its blocks, got {config.model}",
                field="gradient_checkpointing",
            )
        # After the network is made, not as its option: initialization follows the plain network.
        model.gradient_checkpointing = True  # type: ignore[assignment]
    return model


def build(
    config: Config, classes: int, channels: int, size: int, example: Tensor | None = None
) -> nn.Module:
    """The network with its initial weights, on the CPU.

    Args:
        config: decides all, with the seed.
        classes: of the data.
        channels: of the images.
        size: of the images, height and width.
        example: images [batch, channels, size, size] for init="lsuv".

    Raises:
        UserError: if network, initialization and data don't fit together.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(config.seed, "network"))
        model = create(config, classes, channels, size)
        if config.init != "own":
            _initialize(model, config, example)
        _fill_linear(model, config.linear_std)
    return model


def _initialize(model: nn.Module, config: Config, example: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(mix(config.seed, "init"))
    try:
        with _plain_forward(model):
            init.initialize_(
                model,
                example if config.init == "lsuv" else None,
                method=config.init,
                mode=config.init_mode,
                generator=generator,
            )
    except (ValueError, RuntimeError) as error:
        raise UserError(_one_line(error)) from error
    if config.init == "gaussian":
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, (nn.Conv2d, nn.Linear)):
                    module.weight.mul_(config.init_std / GAUSSIAN_STD)


@contextlib.contextmanager
def _plain_forward(model: nn.Module) -> Iterator[None]:
    """Without recomputation, which can't be traced."""
    kept = getattr(model, "gradient_checkpointing", None)
    if kept is None:
        yield
        return
    model.gradient_checkpointing = False  # type: ignore[assignment]
    try:
        yield
    finally:
        model.gradient_checkpointing = kept


def _fill_linear(model: nn.Module, stds: tuple[float, ...] | None) -> None:
    if stds is None:
        return
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if len(stds) != len(layers):
        raise UserError(
            f"linear_std: expected {len(layers)} numbers, one for each linear layer, "
            f"got {len(stds)}"
        )
    for layer, std in zip(layers, stds, strict=True):
        nn.init.normal_(layer.weight, std=std)


def check_size(model: nn.Module, channels: int, size: int, smallest: int) -> None:
    """Raises UserError unless the network takes batches of such images, also the smallest batch.

    Args:
        model: left as it is.
        channels: of the images.
        size: of the images.
        smallest: images in the smallest batch of training; batch norm may need more than one.
    """
    state: dict[str, Any] = {
        **dict(model.named_parameters()),
        **{name: buffer.clone() for name, buffer in model.named_buffers()},
    }
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            functional_call(model, state, torch.zeros(smallest, channels, size, size))
    except (ValueError, RuntimeError) as error:
        raise UserError(
            f"expected a network that takes {smallest} images of {channels} x {size} x {size}, "
            f"got {_one_line(error)}"
        ) from error


def last_layer(model: nn.Module, channels: int, size: int) -> str:
    """The name of the convolution or linear layer that makes the network's output."""
    names: list[str] = []
    hooks = [
        module.register_forward_hook(lambda *_, name=name: names.append(name))
        for name, module in model.named_modules()
        if isinstance(module, (nn.Conv2d, nn.Linear))
    ]
    model.eval()
    with torch.no_grad():
        model(torch.zeros(1, channels, size, size))
    model.train()
    for hook in hooks:
        hook.remove()
    return names[-1]


def _one_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
