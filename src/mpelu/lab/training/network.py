"""The network of a config with its initial weights, both a function of config and seed."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from mpelu import init, models
from mpelu.activations import TABLE
from mpelu.lab import references
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, choose, one_line, plural
from mpelu.lab.references import is_reference
from mpelu.lab.training.seeds import derive
from mpelu.lab.training.swapping import swap_activations
from mpelu.models import registry
from mpelu.models.parts import activation_spec

_OWN_FIELDS = ("activation", "alpha", "beta")


def check_name(config: Config) -> None:
    """Raises UserError unless the network exists, and so does what else the config names."""
    for field, name in config.references.items():
        references.load(field, name)
    hint = "`mpelu train --help` lists them"
    for field in ("activation", "convert"):
        name = getattr(config, field)
        if name is not None and not is_reference(name):
            choose(field, name, TABLE, noun="activation", hint=hint)
    if not is_reference(config.init):
        choose("init", config.init, ["own", *init.METHODS], noun="initialization", hint=hint)
    if is_reference(config.model):
        return
    try:
        registry.find(config.model)
    except ValueError as error:
        raise UserError(one_line(error), field="model") from error


def create(config: Config, classes: int, channels: int, size: int) -> nn.Module:
    """The network as `mpelu.models` or the user's own code builds it, for data of these classes,
    channels and size, with the activation that the config may put in place of its own.

    Raises:
        UserError: for an unknown network or option, or one that doesn't fit the data.
    """
    make = _create_own if is_reference(config.model) else _create_known
    model = make(config, classes, channels, size)
    if config.convert is None:
        return model
    try:
        return swap_activations(model, torch.zeros(2, channels, size, size), config.convert).model
    except ValueError as error:
        raise UserError(one_line(error), field="convert") from error


def _create_known(config: Config, classes: int, channels: int, size: int) -> nn.Module:
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
            activation=_activation(config),
            alpha=config.alpha,
            beta=config.beta,
            **options,
        )
    except UserError:
        raise
    except (ValueError, TypeError) as error:
        raise _about_network(config, one_line(error)) from error
    if config.gradient_checkpointing:
        if not hasattr(model, "gradient_checkpointing"):
            raise UserError(
                f"expected a residual network, which can recompute its blocks, got {config.model}",
                field="gradient_checkpointing",
            )
        # Set after construction, because initialization traces the network without it.
        model.gradient_checkpointing = True  # type: ignore[assignment]
    return model


def _about_network(config: Config, text: str) -> UserError:
    """The error of a network of the package, about the field that it comes from."""
    field, _, rest = text.partition(": ")
    if field in _OWN_FIELDS:
        return UserError(rest, field=field)
    if text.startswith(f"{config.model}: unknown option"):
        return UserError(text, field="model_options")
    if text.startswith(f"{config.model}: input_size"):
        return UserError(f"{text} (use --image-size 32)", field="model")
    for name in ("alpha", "beta"):
        if getattr(config, name) is not None and f"expected {name}" in text:
            return UserError(text, field=name)
    return UserError(text, field="model")


def _create_own(config: Config, classes: int, channels: int, size: int) -> nn.Module:
    """The network of a reference, called with as many of these arguments as it takes."""
    factory = references.load("model", config.model)
    for name in ("alpha", "beta", "gradient_checkpointing"):
        if getattr(config, name) is not None and getattr(config, name) is not False:
            raise UserError(f"{config.model} is your own and can't take it", field=name)
    given = dict(config.model_options)
    if config.activation is not None:
        if not references.takes(factory, "activation"):
            raise UserError(
                f"{config.model} takes no argument activation; to replace the activations that "
                f"it has, use --convert {config.activation}",
                field="activation",
            )
        given["activation"] = _activation(config)
    for name in config.model_options:
        if not references.takes(factory, name):
            raise UserError(f"{config.model} takes no argument {name}", field="model_options")
    offered = {"num_classes": classes, "in_channels": channels, "input_size": size}
    offered = {name: value for name, value in offered.items() if name not in given}
    model = references.call("model", config.model, offered=offered, **given)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{config.model}: expected a torch.nn.Module, got {type(model).__name__}",
            field="model",
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{config.model}: expected a network with parameters", field="model")
    return model


def _activation(config: Config) -> str | Callable[[int], nn.Module] | None:
    """A name for the package's networks; a callable from channels to a module for one's own."""
    if config.activation is None or not is_reference(config.model):
        return config.activation
    return activation_spec(config.activation).make


def build(
    config: Config, classes: int, channels: int, size: int, example: Tensor | None = None
) -> nn.Module:
    """The network with its initial weights, on the CPU.

    Args:
        config: network, activation, initialization and seed.
        classes: number of classes.
        channels: channels of the images.
        size: height and width of the images.
        example: images [batch, channels, size, size] for a method that needs inputs, such as lsuv.

    Raises:
        UserError: if network, initialization and data don't fit together.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(config.seed, "network"))
        model = create(config, classes, channels, size)
        if config.init != "own":
            _initialize(model, config, example, (channels, size, size))
        elif config.init_distribution is not None or config.init_shape is not None:
            name = "init_shape" if config.init_distribution is None else "init_distribution"
            raise UserError("expected --init exact, critical or deep with it, got own", field=name)
        _fill_linear(model, config.linear_std)
    return model


def init_method(config: Config) -> init.Method | None:
    """The method of a config with its options; None for the network's own and for a function of the
    user's.

    Raises:
        UserError: for an option that the method doesn't have.
    """
    if config.init == "own":
        return None
    if is_reference(config.init):
        kind = references.load("init", config.init)
        if not (isinstance(kind, type) and issubclass(kind, init.Method)):
            return None
    else:
        kind = init.METHODS[config.init]
    known = {field.name for field in fields(kind)}
    options: dict[str, Any] = {"mode": config.init_mode, "std": config.init_std}
    options = {name: value for name, value in options.items() if name in known}
    for field, name, value in (
        ("init_distribution", "distribution", config.init_distribution),
        ("init_shape", "shapes", config.init_shape and True),
    ):
        if value is not None and name not in known:
            raise UserError(f"{config.init} has no such option", field=field)
        if value is not None:
            options[name] = value
    try:
        return kind(**options)
    except ValueError as error:
        raise UserError(one_line(error), field="init") from error


def _initialize(
    model: nn.Module, config: Config, example: Tensor | None, shape: tuple[int, int, int]
) -> None:
    generator = torch.Generator().manual_seed(derive(config.seed, "init"))
    method = init_method(config)
    if method is None:
        references.call("init", config.init, model, offered={"generator": generator})
        return
    is_sized = config.init_sized or method.sets_biases
    try:
        with _plain_forward(model):
            init.initialize_(
                model,
                example if method.needs_inputs else None,
                method,
                input_shape=shape if is_sized and not method.needs_inputs else None,
                generator=generator,
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


def check_size(
    model: nn.Module, channels: int, size: int, smallest: int, classes: int | None = None
) -> None:
    """Raises UserError unless the network accepts the smallest batch of training.

    Args:
        model: the network, left as it is.
        channels: channels of the images.
        size: height and width of the images.
        smallest: images in the smallest batch; batch norm may need more than one.
        classes: number of classes its output must have; None to accept any.
    """
    state: dict[str, Any] = {
        **dict(model.named_parameters()),
        **{name: buffer.clone() for name, buffer in model.named_buffers()},
    }
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            output = functional_call(model, state, torch.zeros(smallest, channels, size, size))
    except Exception as error:  # also what a network of the user's own raises
        raise UserError(
            f"the network can't take a batch of {plural(smallest, 'image')} of "
            f"{channels} x {size} x {size}: {one_line(error)}",
            field="model",
        ) from error
    logits = output[0] if isinstance(output, tuple) else output
    if not isinstance(logits, Tensor):
        raise UserError(
            f"expected a network that returns a tensor, got {type(logits).__name__}", field="model"
        )
    if classes is not None and logits.shape != (smallest, classes):
        raise UserError(
            f"expected outputs of shape [batch, {classes}], one per class of the data, got "
            f"{list(logits.shape)} for {plural(smallest, 'image')}",
            field="model",
        )


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
    if not names:
        raise UserError(
            "expected a network with a convolution or linear layer, got none", field="last_lr_mult"
        )
    return names[-1]
