"""Where a model's activations are, and the modules that take their places."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.activations import find_function
from mpelu.converting.modules import MPELUByWidth, PendingMPELU
from mpelu.converting.observe import Site
from mpelu.converting.recognize import Kind, Start, is_among, module_for, recognize, wanted
from mpelu.modules import MPELU

_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks",
)  # fmt: skip


class StandIn(nn.Module):
    """A function as a module, while the model is observed."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.inplace = function.__name__.endswith("_")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@dataclass
class Place:
    """An attribute of a module that holds an activation."""

    owner: nn.Module
    name: str
    path: str
    module: nn.Module
    """The activation: a stand-in of its own for a function, or one for each place of a module that
    several have."""
    original: Any
    """The attribute as it was."""
    kind: Kind
    near: list[Tensor]
    """Parameters around it."""

    @property
    def was(self) -> str:
        if isinstance(self.original, nn.Module):
            return self.kind.label
        return f"function {self.original.__name__}"

    def put(self, module: nn.Module) -> None:
        """Sets the attribute to a module."""
        setattr(self.owner, self.name, module)
        if isinstance(self.owner, nn.TransformerEncoderLayer):
            self.owner.activation_relu_or_gelu = 0  # or its fast path would ignore the module

    def put_back(self) -> None:
        """Sets the attribute to what it was."""
        if not isinstance(self.original, nn.Module) and self.name in self.owner._modules:
            delattr(self.owner, self.name)
        setattr(self.owner, self.name, self.original)


def find_places(model: nn.Module, replace: Sequence[type[nn.Module]] | None) -> Iterator[Place]:
    """The activations to replace, in the order of the model's modules.

    Functions in attributes get modules as stand-ins. So does an activation without parameters that
    is in several places: each place is on its own then.
    """
    kinds = {id(module): wanted(module, replace) for module in model.modules()}
    seen: set[int] = set()
    for path, owner in list(model.named_modules()):
        if isinstance(owner, torch.jit.ScriptModule) or recognize(owner) is not None:
            continue
        near = _parameters_near(model, path)
        for name, child in list(owner._modules.items()):
            kind = None if child is None else kinds[id(child)]
            if child is None or kind is None:
                continue
            module = child
            if id(child) in seen and not any(True for _ in child.parameters()):
                module = copy.copy(child)
                owner._modules[name] = module
            seen.add(id(child))
            yield Place(owner, name, _join(path, name), module, child, kind, near)
        for name, value in list(vars(owner).items()):
            record = None if name.startswith("__") else find_function(value)
            if record is None or not is_among(record, replace):
                continue
            computed = module_for(record, (), {})
            if computed is not None:
                module = StandIn(value).train(owner.training)
                setattr(owner, name, module)
                kind = Kind(record.label, record, computed)
                yield Place(owner, name, _join(path, name), module, value, kind, near)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _parameters_near(model: nn.Module, path: str) -> list[Tensor]:
    """The parameters of the nearest module around that has any of real numbers."""
    while True:
        inside = model.get_submodule(path).parameters()
        found: list[Tensor] = [each for each in inside if each.is_floating_point()]
        if found or not path:
            return found
        path = path.rpartition(".")[0]


@dataclass(frozen=True)
class Replacement:
    """A new module, or the reason why there is none."""

    module: nn.Module | None = None
    channels: tuple[int, ...] = ()
    dim: int | None = None
    source: str = ""
    note: str = ""


def build(
    place: Place, start: Start, sites: Sequence[Site] | None, *, shared: bool, dim: int | None
) -> Replacement:
    """What takes the place of an activation.

    Args:
        place: of the activation.
        start: alpha and beta.
        sites: its calls; None if they are unknown.
        shared: one alpha and beta for all channels.
        dim: dimension of the channels, in place of what the sites say.

    Returns:
        The new module. It overwrites its input only if the calls are unknown and the activation
        does; otherwise `overwriting_needed` tells.
    """
    slopes = start.alpha.numel() if isinstance(start.alpha, Tensor) else 1
    if shared and slopes > 1:
        return Replacement(note=f"{place.kind.label} has parameters per channel, shared=True none")
    is_unknown = sites is None or any(site.shape is None for site in sites)
    made = _Maker(place, start, inplace=is_unknown and getattr(place.module, "inplace", False))
    if not start.fits(made.options.get("dtype", torch.get_default_dtype())):
        return Replacement(note=f"{place.kind.label}: alpha or beta would be out of range")
    if shared:
        return Replacement(made(1, 1), (1,))
    if slopes > 1:
        dim = getattr(place.module, "dim", 1)
        return Replacement(made(slopes, dim), (slopes,), dim, "its own parameters")
    if sites is None or is_unknown:
        return _pending(made, start, sites or (), dim)
    if not sites:
        return Replacement(note="not called on the example inputs")
    if dim is None and any(site.channels is None for site in sites):
        note = "no channels found: one alpha and beta for all; dim= takes those of a dimension"
        return Replacement(made(1, 1), (1,), note=note)
    if dim is None:
        dim = _common_dim(sites)
    if dim is None:
        return Replacement(
            note="called with channels in different dimensions; shared=True or rewrite=True"
        )
    shapes = [site.shape for site in sites if site.shape is not None]
    if not all(-len(shape) <= dim < len(shape) for shape in shapes):
        raise ValueError(
            f"convert: expected dim to be a dimension of the input of {place.path}, got {dim} for "
            f"shape {list(shapes[0])}"
        )
    widths = sorted({shape[dim] for shape in shapes})
    modules = [made(width, dim) for width in widths]
    source = sites[0].channels.source if sites[0].channels is not None else "dim="
    chosen = modules[0] if len(modules) == 1 else MPELUByWidth(modules)
    return Replacement(chosen, tuple(widths), dim, source)


def _pending(made: _Maker, start: Start, sites: Sequence[Site], dim: int | None) -> Replacement:
    assert isinstance(start.alpha, float)
    assert isinstance(start.beta, float)
    if dim is None and sites and all(site.channels is not None for site in sites):
        dim = _common_dim(sites)
    module = PendingMPELU(
        start.alpha, start.beta, dim=dim, calls=max(len(sites), 1), **made.options,
        requires_grad=made.is_trained,
    )  # fmt: skip
    source = sites[0].channels.source if sites and sites[0].channels is not None else ""
    return Replacement(
        module, (), dim, source, "channels come with a state_dict or the first batch"
    )


class _Maker:
    """Makes MPELUs as the parameters around are: device, dtype, trained or frozen."""

    def __init__(self, place: Place, start: Start, *, inplace: bool) -> None:
        near = [*place.module.parameters()] or place.near
        self.start = start
        self.options: dict[str, Any] = {"inplace": inplace}
        if near:
            self.options.update(device=near[0].device, dtype=near[0].dtype)
        self.is_trained = not near or any(each.requires_grad for each in near)

    def __call__(self, width: int, dim: int) -> MPELU:
        module = MPELU(width, self.start.alpha, self.start.beta, dim=dim, **self.options)
        return module.requires_grad_(self.is_trained)


def _common_dim(sites: Sequence[Site]) -> int | None:
    """A dimension that has the channels at every site."""
    found = [
        (len(site.shape) if site.shape is not None else None, site.channels.dim)
        for site in sites
        if site.channels is not None
    ]
    for _, dim in found:
        if all(
            dim == other if ndim is None else -ndim <= dim < ndim and dim % ndim == other % ndim
            for ndim, other in found
        ):
            return dim
    return None


def take_over(new: nn.Module, old: nn.Module) -> None:
    """Hands the mode and the hooks of a module on to the one that takes its place."""
    new.training = old.training
    for name in _HOOKS:
        own, given = getattr(new, name), getattr(old, name)
        if own:  # a lazy module's
            own.update(given)
        else:  # the same object, so that the handles still remove them
            setattr(new, name, given)
    new._is_full_backward_hook = old._is_full_backward_hook


def dim_of(path: str, dim: int | Mapping[str, int] | None) -> int | None:
    """The dimension that a user gave for an activation."""
    return dim.get(path) if isinstance(dim, Mapping) else dim
