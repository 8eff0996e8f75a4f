"""The network of a config with its initial weights, both a function of config and seed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mpelu import init, models
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, one_line, plural
from mpelu.lab.training.seeds import derive
from mpelu.models import registry

_OWN_FIELDS = ("activation", "alpha", "beta")


def check_name(config: Config) -> None:
    """Raises UserError unless the network exists."""
    try:
        registry.find(config.model)
    except ValueError as error:
        raise UserError(one_line(error), field="model") from error


def create(config: Config, classes: int, channels: int, size: int) -> nn.Module:
    """The network as `mpelu.models` builds it, for data of these classes, channels and size.

    Raises:
        UserError: for an unknown network or option, or one that doesn't fit the data.
    """
    options = dict(config.model_options)
    for name in _OWN_FIELDS:
        if name in options:
            raise UserError(f"give {name} as --{name} instead", field="model_options")
    for name, value in {"num_classes": classes, "in_channels": channels}.items():
        if options.setdefault(name, value) != value:
            raise UserError(
                f"expected {name}={value}, as the data has, got {options[name]!r}",
                field="model_options",
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
        raise UserError(one_line(error)) from error
    if config.gradient_checkpointing:
        if not hasattr(model, "gradient_checkpointing"):
            raise UserError(
                f"expected a residual network, which can recompute its blocks, got {config.model}",
                field="gradient_checkpointing",
            )
        # Set after construction, because initialization traces the network without it.
        model.gradient_checkpointing = True  # type: ignore[assignment]
    return model


def build(
    config: Config, classes: int, channels: int, size: int, example: Tensor | None = None
) -> nn.Module:
    """The network with its initial weights, on the CPU.

    Args:
        config: network, activation, initialization and seed.
        classes: number of classes.
        channels: channels of the images.
        size: height and width of the images.
        example: images [batch, channels, size, size] for init="lsuv".

    Raises:
        UserError: if network, initialization and data don't fit together.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "network"))
        model = create(config, classes, channels, size)
        if config.init != "own":
            _initialize(model, config, example)
        _fill_linear(model, config.linear_std)
    return model


def _initialize(model: nn.Module, config: Config, example: Tensor | None) -> None:
    generator = torch.Generator().manual_seed(derive(config.seed, "init"))
    try:
        with _plain_forward(model):
            init.initialize_(
                model,
                example if config.init == "lsuv" else None,
                method=config.init,
                mode=config.init_mode,
                generator=generator,
                std=config.init_std,
            )
    except (ValueError, RuntimeError) as error:
        raise UserError(one_line(error)) from error


@contextlib.contextmanager
def _plain_forward(model: nn.Module) -> Iterator[None]:
    """Switches gradient checkpointing off, which can't be traced."""
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
            f"expected {plural(len(layers), 'number')}, one per linear layer, got {len(stds)}",
            field="linear_std",
        )
    for layer, std in zip(layers, stds, strict=True):
        nn.init.normal_(layer.weight, std=std)


def check_size(model: nn.Module, channels: int, size: int, smallest: int) -> None:
    """Raises UserError unless the network accepts the smallest batch of training.

    Args:
        model: the network, left as it is.
        channels: channels of the images.
        size: height and width of the images.
        smallest: images in the smallest batch; batch norm may need more than one.
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
            f"the network can't take a batch of {plural(smallest, 'image')} of "
            f"{channels} x {size} x {size}: {one_line(error)}",
            field="model",
        ) from error


def last_layer(model: nn.Module, channels: int, size: int) -> str:
    """The name of the last convolution or linear layer that runs."""
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
