"""Where a model's activations are, and what takes the place of each."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.converting.conversion import ConvertedActivation
from mpelu.converting.modules import MPELUByWidth, PendingMPELU
from mpelu.converting.observe import Seen, Site
from mpelu.converting.recognize import Kind, Start, recognize, wanted, wanted_function
from mpelu.modules import MPELU

_HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
    "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs", "_backward_hooks",
    "_backward_pre_hooks",
)  # fmt: skip


class StandIn(nn.Module):
    """Stands in for a function in an attribute while the model is observed."""

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
    """The activation, or what stands in for it."""
    original: Any
    """The attribute before the conversion."""
    kind: Kind
    near: list[Tensor]
    """Parameters of the modules around it."""
    start: Start | str = ""
    """Alpha and beta to start from, or why it is left."""

    @property
    def was(self) -> str:
        if isinstance(self.original, nn.Module):
            return self.kind.label
        return f"function {self.original.__name__}"

    def put(self, module: nn.Module) -> None:
        """Sets the attribute to a module, which takes over the mode and the hooks."""
        module.training = self.module.training
        for name in _HOOKS:
            own, given = getattr(module, name), getattr(self.module, name)
            if own:  # hooks of a lazy module
                own.update(given)
            else:  # the same object, so that the handles still remove them
                setattr(module, name, given)
        module._is_full_backward_hook = self.module._is_full_backward_hook
        setattr(self.owner, self.name, module)
        if isinstance(self.owner, nn.TransformerEncoderLayer):
            self.owner.activation_relu_or_gelu = 0  # or its fast path would ignore the module

    @property
    def is_function_again(self) -> bool:
        """Whether it is a function that was put back."""
        return not isinstance(self.original, nn.Module) and self.name not in self.owner._modules

    def put_back(self) -> None:
        """Restores the attribute."""
        if not isinstance(self.original, nn.Module) and self.name in self.owner._modules:
            delattr(self.owner, self.name)
        setattr(self.owner, self.name, self.original)


def find_places(model: nn.Module, replace: Sequence[type[nn.Module]] | None) -> list[Place]:
    """Finds the activations to replace, in the order of the model's modules.

    Modules stand in for functions in attributes from here on. So do copies for an activation
    without parameters that is in several places, so that each place is on its own.
    """
    if recognize(model) is not None:
        name = type(model).__name__
        raise ValueError(
            f"convert: expected a model that contains activations, got an activation, {name}"
        )
    kinds = {id(module): wanted(module, replace) for module in model.modules()}
    places: list[Place] = []
    seen: set[int] = set()
    for path, owner in list(model.named_modules()):
        if isinstance(owner, torch.jit.ScriptModule) or recognize(owner) is not None:
            continue
        near = _parameters_near(model, path)
        prefix = f"{path}." if path else ""
        for name, child in list(owner._modules.items()):
            kind = None if child is None else kinds[id(child)]
            if child is None or kind is None:
                continue
            module = child
            if id(child) in seen and not any(True for _ in child.parameters()):
                module = owner._modules[name] = copy.copy(child)
            seen.add(id(child))
            places.append(Place(owner, name, prefix + name, module, child, kind, near))
        for name, value in list(vars(owner).items()):
            kind = None if name.startswith("__") else wanted_function(value, replace)
            if kind is not None:
                stand_in = StandIn(value).train(owner.training)
                setattr(owner, name, stand_in)
                places.append(Place(owner, name, prefix + name, stand_in, value, kind, near))
    return places


def _parameters_near(model: nn.Module, path: str) -> list[Tensor]:
    """The floating-point parameters of the nearest module around that has any."""
    while True:
        inside = model.get_submodule(path).parameters()
        found: list[Tensor] = [each for each in inside if each.is_floating_point()]
        if found or not path:
            return found
        path = path.rpartition(".")[0]


def is_skipped(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path, or one that contains it, matches a pattern."""
    parts = path.split(".")
    above = [".".join(parts[: count + 1]) for count in range(len(parts))]
    return any(fnmatch.fnmatchcase(each, pattern) for each in above for pattern in patterns)


def check_paths(
    model: nn.Module,
    places: Sequence[Place],
    skip: Sequence[str],
    dim: int | Mapping[str, int] | None,
) -> None:
    """Raises for paths that don't exist."""
    found = [place.path for place in places]
    paths = [*(path for path, _ in model.named_modules()), *found]
    for pattern in skip:
        if not any(is_skipped(path, [pattern]) for path in paths):
            raise ValueError(f"convert: skip={pattern!r} not found among the paths of the model")
    for path in dim if isinstance(dim, Mapping) else ():
        if path not in found:
            raise ValueError(
                f"convert: dim={path!r} not found among the activations, such as "
                f"{', '.join(found[:3])}"
            )


def swap_all(
    places: Sequence[Place],
    seen: Mapping[int, Seen],
    shared: bool,
    dim: int | Mapping[str, int] | None,
    notes: Mapping[int, str],
) -> list[ConvertedActivation]:
    """Puts an MPELU in each place, or back what was there.

    Args:
        places: all activations.
        seen: what the model does with each, by the id of its module.
        shared: whether all channels share one alpha and beta.
        dim: dimension of the channels, for all or by path; None for the one that was found.
        notes: what to know about an activation, by the id of its original.
    """
    made: dict[int, _Replacement] = {}
    for place in places:
        key, start = id(place.module), place.start
        if isinstance(start, str):
            made[key] = _Replacement(note="its parameters are shared with one that is left")
        elif seen[key].takes_more:
            note = "called with more than its input; an MPELU takes nothing else"
            made[key] = _Replacement(note=note)
        elif seen[key].stays:
            made[key] = _Replacement(note=seen[key].stays)
        elif key not in made:  # parameters in several places, such as PReLU's, stay shared
            given = dim.get(place.path) if isinstance(dim, Mapping) else dim
            made[key] = _replacement(place, start, seen[key], shared, given)
    return [
        _put(
            place,
            made[id(place.module)],
            notes.get(id(place.original), ""),
        )
        for place in places
    ]


def _put(place: Place, new: _Replacement, about_code: str) -> ConvertedActivation:
    start, error, notes = place.start, None, [new.note]
    if isinstance(start, str) or new.module is None:
        place.put_back()
        notes = [start] if isinstance(start, str) else notes
    else:
        place.put(new.module)
        notes.append(about_code)
        if start.is_straight:
            new.module.__dict__["keeps_slopes"] = True  # for Conversion.load_state_dict
        error = start.error
    return ConvertedActivation(
        path=place.path,
        was=place.was,
        is_swapped=new.module is not None,
        channels=new.channels,
        dim=new.dim,
        source=new.source,
        error=error,
        note="; ".join(note for note in notes if note),
    )


@dataclass(frozen=True)
class _Replacement:
    """A new module, or the reason why there is none."""

    module: nn.Module | None = None
    channels: tuple[int, ...] = ()
    dim: int | None = None
    source: str = ""
    note: str = ""


def _replacement(
    place: Place, start: Start, seen: Seen, shared: bool, dim: int | None
) -> _Replacement:
    near = [*place.module.parameters()] or place.near
    options: dict[str, Any] = {"inplace": seen.in_place}
    if near:
        options.update(device=near[0].device, dtype=near[0].dtype)
    is_trained = not near or any(each.requires_grad for each in near)

    def make(width: int, dim: int) -> MPELU:
        module = MPELU(width, dim=dim, **start.values, **options)
        return module.requires_grad_(is_trained)

    own = start.channels
    if shared and own > 1:
        note = f"{place.kind.label} has parameters per channel, which shared=True rules out"
        return _Replacement(note=note)
    dtype = options.get("dtype", torch.get_default_dtype())
    values = [torch.as_tensor(each).to(dtype) for each in start.values.values()]
    if not all(bool(each.isfinite().all()) for each in values):
        return _Replacement(note=f"{place.kind.label}: its parameters would be out of range")
    if shared:
        return _Replacement(make(1, 1), (1,))
    if own > 1:
        dim = getattr(place.module, "dim", 1)
        return _Replacement(make(own, dim), (own,), dim, "its own parameters")
    sites = seen.sites
    if sites is not None and not sites:
        return _Replacement(note="not called on the example inputs")
    channels = [site.channels for site in sites or ()]
    are_known = bool(channels) and None not in channels
    source = channels[0].source if channels and channels[0] is not None else ""
    if sites is None or any(site.shape is None for site in sites):
        if dim is None and sites is not None and are_known:
            dim = _common_dim(sites)
        options.update(dim=dim, calls=max(len(channels), 1), requires_grad=is_trained)
        pending = PendingMPELU(start.numbers, **options)
        note = "takes its channels from a state_dict or the first batch"
        return _Replacement(pending, (), dim, source, note)
    if dim is None and not are_known:
        note = "no channels found, so all share the parameters; dim= names a dimension"
        return _Replacement(make(1, 1), (1,), note=note)
    if dim is None:
        dim = _common_dim(sites)
    if dim is None:
        note = "called with channels in different dimensions; use shared=True or rewrite=True"
        return _Replacement(note=note)
    shapes = [site.shape for site in sites if site.shape is not None]
    if not all(-len(shape) <= dim < len(shape) for shape in shapes):
        raise ValueError(
            f"convert: expected dim to be a dimension of the input of {place.path}, got {dim} for "
            f"shape {list(shapes[0])}"
        )
    widths = sorted({shape[dim] for shape in shapes})
    modules = [make(width, dim) for width in widths]
    chosen = modules[0] if len(modules) == 1 else MPELUByWidth(modules)
    return _Replacement(chosen, tuple(widths), dim, source or "dim=")


def _common_dim(sites: Sequence[Site]) -> int | None:
    """The dimension that has the channels at every site, if there is one."""
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
