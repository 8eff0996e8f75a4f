"""The network of a config with its initial weights, both a function of config and seed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

import mpelu
from mpelu import activations, init, models
from mpelu.activations import TABLE, ActivationRecord
from mpelu.converting import Conversion, MPELUByWidth
from mpelu.graph import Inputs
from mpelu.lab import references
from mpelu.lab.config import Config
from mpelu.lab.errors import UserError, choose, listed, one_line, plural
from mpelu.lab.references import is_reference
from mpelu.lab.training.process import derive
from mpelu.models import registry
from mpelu.models.parts import activation_spec
from mpelu.modules import MPELU

_OWN_FIELDS = ("activation", "alpha", "beta", "coordinates")


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
    facts = {"num_classes": classes, "in_channels": channels, "input_size": size}
    own = is_reference(config.model)
    model = _create_own(config, facts) if own else _create_known(config, facts)
    if config.convert is None:
        return model
    try:
        return swap_activations(model, torch.zeros(2, channels, size, size), config.convert).model
    except ValueError as error:
        raise UserError(one_line(error), field="convert") from error


def make(name: str, options: Mapping[str, Any], facts: Mapping[str, int]) -> nn.Module:
    """The model of a name.

    Args:
        name: package.module:factory, or a network of `mpelu.models`.
        options: its keyword arguments.
        facts: what the data says: num_classes, in_channels and input_size. A model that takes them
            is given them, where the options don't.

    Raises:
        UserError: if there is no such model, or it needs other options.
        ValueError: from a network of `mpelu.models`.
    """
    offered: dict[str, Any] = {key: facts[key] for key in facts if key not in options}
    if not is_reference(name):
        family, _ = registry.find(name)
        if "input_size" in offered and not references.takes(family.build, "input_size"):
            del offered["input_size"]
        return models.create(name, **offered, **options)
    factory = references.load("model", name)
    for key in options:
        if not references.takes(factory, key):
            raise UserError(f"{name} takes no argument {key}", field="model_options")
    lacking = [each for each in references.required(factory) if each not in {*options, *offered}]
    if lacking:
        values = " ".join(f"{each}=VALUE" for each in lacking)
        raise UserError(
            f"{name} needs {listed(lacking, 'and')}; give {'them' if lacking[1:] else 'it'} with "
            f"--model-options {values}",
            field="model",
        )
    model = references.call("model", name, offered=offered, **options)
    if not isinstance(model, nn.Module):
        raise UserError(
            f"{name}: expected a torch.nn.Module, got {type(model).__name__}", field="model"
        )
    return model


def _create_known(config: Config, facts: Mapping[str, int]) -> nn.Module:
    """A network of the package."""
    options = dict(config.model_options)
    for name in _OWN_FIELDS:
        if name in options:
            raise UserError(f"give {name} as --{name} instead", field="model_options")
    for name in ("num_classes", "in_channels"):
        if options.get(name, facts[name]) != facts[name]:
            raise UserError(
                f"expected {name}={facts[name]}, as the data has, got {options[name]!r}",
                field="model_options",
            )
    own = {name: getattr(config, name) for name in _OWN_FIELDS}
    try:
        model = make(config.model, {**options, **own}, facts)
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


def _create_own(config: Config, facts: Mapping[str, int]) -> nn.Module:
    """The network of a reference."""
    for name in ("alpha", "beta", "coordinates", "gradient_checkpointing"):
        if getattr(config, name) is not None and getattr(config, name) is not False:
            raise UserError(f"{config.model} is your own and can't take it", field=name)
    options = dict(config.model_options)
    if config.activation is not None:
        if not references.takes(references.load("model", config.model), "activation"):
            raise UserError(
                f"{config.model} takes no argument activation; to replace the activations that "
                f"it has, use --convert {config.activation}",
                field="activation",
            )
        options["activation"] = activation_spec(config.activation).make
    model = make(config.model, options, facts)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"{config.model}: expected a network with parameters", field="model")
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


def last_layer(model: nn.Module, config: Config, channels: int, size: int) -> str | None:
    """The last convolution or linear layer that runs, if the config says something about it.

    Raises:
        UserError: if there is no such layer.
    """
    if config.last_lr_mult is None:
        return None
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


def swap_activations(model: nn.Module, inputs: Inputs, activation: str) -> Conversion:
    """Puts an activation wherever `mpelu.convert` would put an MPELU.

    Whatever the activation, it is put in the same places, and no random number is drawn. Calls of
    functions are swapped where torch.fx traces the modules that make them.

    Args:
        model: changed in place; use the `model` of the result.
        inputs: of the model; their shapes count.
        activation: a name of `mpelu.activations.TABLE` or package.module:factory.

    Raises:
        ValueError: in one line, if there is no such activation or nothing to swap.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
        >>> swap_activations(model, torch.randn(2, 8), "silu").model[1]
        SiLU()
    """
    record = activations.resolve(activation)
    found = _converted(model, inputs)
    if record.name == "mpelu":
        return found
    for row in found.swapped:
        module = found.model.get_submodule(row.path)
        if isinstance(module, MPELUByWidth):
            for width, each in module.widths.items():
                module.widths[width] = _in_place_of(cast(MPELU, each), record)
        else:
            found.model.set_submodule(row.path, _in_place_of(cast(MPELU, module), record))
    return found


def _converted(model: nn.Module, inputs: Inputs) -> Conversion:
    try:
        return mpelu.convert(model, inputs, rewrite=True)
    except ValueError:  # what torch.fx can't trace may have modules to swap
        return mpelu.convert(model, inputs)


def _in_place_of(old: MPELU, record: ActivationRecord) -> nn.Module:
    channels, dim = old.num_parameters, old.dim
    if not record.parameters or "dim" in record.options or channels == 1:
        module = record.make(channels, dim=dim if "dim" in record.options else None)
    else:
        module = AlongDimension(record.make(channels), dim)
    if old.inplace:
        module = InPlace(module)
    return module.to(old.alpha.device, old.alpha.dtype).train(old.training)


class InPlace(nn.Module):
    """An activation that overwrites its input, for models that read the input afterwards.

    Args:
        activation: the activation.
    """

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, input: Tensor) -> Tensor:
        return input.copy_(self.activation(input.clone()))


class AlongDimension(nn.Module):
    """An activation whose channels are in dimension 1, for tensors with channels elsewhere.

    Args:
        activation: the activation.
        dim: dimension of the channels.
    """

    def __init__(self, activation: nn.Module, dim: int) -> None:
        super().__init__()
        self.activation, self.dim = activation, dim

    def forward(self, input: Tensor) -> Tensor:
        if self.dim % input.dim() == 1:
            output: Tensor = self.activation(input)
            return output
        output = self.activation(input.movedim(self.dim, 1)).movedim(1, self.dim)
        return output
