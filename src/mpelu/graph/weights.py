"""Finds the parameter a tensor is, is part of or was computed from, and layers that share one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from mpelu.graph.calls import Call, Layer, tensors_in
from mpelu.graph.state import unchanged

WEIGHT_HOOKS = (WeightNorm, SpectralNorm)
"""Module hooks that compute a weight and change nothing else."""


class Parametrized(NamedTuple):
    """A weight that a parametrization, or a hook of torch.nn.utils, computes from parameters."""

    module: nn.Module
    """Parametrizations, or module with the hook, whose state the computation reads."""
    originals: Sequence[tuple[str, nn.Parameter]]
    """Parameters that the weight is computed from, with their paths."""
    read: Callable[[], Tensor]
    inverse: Callable[[Tensor], Sequence[Tensor]]
    """Returns the values of the parameters for a weight; raises if there is no inverse."""
    attribute: str = ""
    """Attribute of the module that holds the weight the hook computed last."""


Elements = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides and offset of a view of a parameter's memory."""


def extent(elements: Elements) -> int:
    """Returns how far a view reaches into the memory."""
    sizes, strides, offset = elements
    return offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) + 1


class Weights:
    """Finds the parameter that a tensor is, or was computed from by functions of parameters alone.

    Views of packed weights, weights under a parametrization and standardized weights are computed
    in this way.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: dict[int, tuple[nn.Parameter, str]] = {}
        self._derived: dict[int, tuple[Tensor, str, Callable[[], Any]]] = {}
        self._parametrized: dict[str, Parametrized] = {}
        """Computed weights, by the path of each parameter."""
        self.used: dict[str, str] = {}
        """Name of the function that last used each parameter, by the parameter's path."""
        self._scan()
        for path, module in model.named_modules():
            self._find_parametrized(path, module)

    def name(self, tensor: Tensor) -> str | None:
        """Returns the path of the tensor's parameter, or None for a tensor that has none."""
        found = self._names.get(id(tensor)) or self._derived.get(id(tensor))
        if found is None and isinstance(tensor, nn.Parameter):
            self._scan()  # FSDP replaces its shards with whole parameters during a pass
            found = self._names.get(id(tensor))
        return None if found is None else found[1]

    def key(self, tensor: Tensor) -> Key | None:
        """Returns a key of a weight, or of part of a packed one, that is the same in every pass."""
        name = self.name(tensor)
        if name is None:
            return None
        return name, int(tensor.storage_offset()) if self._is_view(tensor) else 0, tensor.shape

    def _is_view(self, tensor: Tensor) -> bool:
        return id(tensor) not in self._names and isinstance(tensor._base, nn.Parameter)

    def is_part(self, tensor: Tensor) -> bool:
        """Returns whether the tensor is a view of its parameter as it is now."""
        name = None if tensor._base is None else self.name(tensor)
        return name is not None and tensor._base is self._parameter(name)

    def overlap(self, one: Tensor, other: Tensor) -> bool:
        """Returns whether two uses of one parameter share elements of it."""
        first, second = sorted((self.elements(one), self.elements(other)), key=lambda each: each[2])
        if extent(first) <= second[2]:  # stacked weights, of which there may be many
            return False
        mask = torch.zeros(max(extent(first), extent(second)), dtype=torch.bool, device="cpu")
        mask.as_strided(*first).fill_(True)
        return bool(mask.as_strided(*second).any())

    def elements(self, tensor: Tensor) -> Elements:
        """Returns the elements of its parameter that a tensor is; all, if computed from them."""
        name = self.name(tensor)
        assert name is not None
        parameter = self._parameter(name)
        if not self._is_view(tensor):
            return (parameter.numel(),), (1,), 0
        offset = int(tensor.storage_offset() - parameter.storage_offset())
        # An expanded dimension repeats the same elements.
        axes = [each for each in zip(tensor.shape, tensor.stride(), strict=True) if each[1]]
        return tuple(size for size, _ in axes), tuple(step for _, step in axes), offset

    def takes_noise(self, name: str, std: float) -> bool:
        """Returns whether a parametrization turns noise into a weight of usual size and mean."""
        path, _, _ = name.rpartition(".")
        owner = self._model.get_submodule(path)
        if not isinstance(owner, ParametrizationList):
            return True
        parameter = self._parameter(name)
        generator = torch.Generator(parameter.device).manual_seed(0)
        with _put_back(parameter), torch.no_grad():
            parameter.normal_(0, std, generator=generator)
            weight = owner()
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32))
            size = _size(parameter)
            found = _size(weight) / size if size > 0 else 0.0
            center = float(weight.mean() / weight.square().mean().sqrt())
        by_chance = max(0.5, 4 / math.sqrt(parameter.numel()))
        return 0.1 < found < math.inf and abs(center) < by_chance

    def is_computed(self, tensor: Tensor) -> bool:
        """Returns whether a tensor was computed from a parameter, and isn't one or part of one."""
        if id(tensor) not in self._derived or isinstance(tensor._base, nn.Parameter):
            return False
        name = self._derived[id(tensor)][1]
        if name in self._parametrized:
            return True
        parameter = self._parameter(name)
        # Views made below autograd have no base, but share the memory.
        return bool(place(tensor)[0] != place(parameter)[0])

    def is_trained(self, tensor: Tensor) -> bool:
        """Returns whether the parameter that a tensor is, or comes from, is trained."""
        if id(tensor) in self._names:
            return tensor.requires_grad
        name = self.name(tensor)
        return name is not None and self._parameter(name).requires_grad

    def derive(self, name: str, output: Any, again: Callable[[], Any]) -> None:
        """Records that an output was computed from a parameter, and how to compute it again."""
        for index, tensor in enumerate([output] if isinstance(output, Tensor) else output):
            if isinstance(tensor, Tensor) and id(tensor) not in self._names:
                part = again if output is tensor else partial(_item, again, index)
                # Kept alive, so that no other tensor gets the same id.
                self._derived[id(tensor)] = tensor, name, part

    def derive_like(self, tensor: Tensor, other: Tensor) -> None:
        """Records that another tensor was computed like one that is recorded already."""
        found = self._derived.get(id(tensor))
        if found is not None:
            self._derived[id(other)] = other, found[1], found[2]

    def again(self, tensor: Tensor) -> Tensor:
        """Computes the tensor again from the current parameters."""
        again: Tensor = self.maker(tensor)()
        return again

    def maker(self, tensor: Tensor) -> Callable[[], Any]:
        """Returns a function that computes the tensor again, given what is recorded now."""
        derived = self._derived.get(id(tensor))
        return (lambda: tensor) if derived is None else derived[2]

    def parametrized(self, name: str) -> Parametrized | None:
        """Returns how a parametrization or hook computes a weight from a parameter, if one does."""
        return self._parametrized.get(name)

    def originals(self, name: str) -> tuple[str, ...]:
        """Returns the paths of the parameter and of those that its parametrization uses with it."""
        found = self._parametrized.get(name)
        return (name,) if found is None else tuple(path for path, _ in found.originals)

    def can_write(self, tensor: Tensor, std: float) -> bool:
        """Returns whether a computed weight can take any values with this standard deviation."""
        name = self.name(tensor)
        found = None if name is None else self._parametrized.get(name)
        if name is None or found is None or isinstance(tensor, FakeTensor):
            return False
        if not all(parameter.requires_grad for _, parameter in found.originals):
            return False
        weight = self.again(tensor)
        generator = torch.Generator(weight.device).manual_seed(0)
        rounding = max(1e-4, 8 * torch.finfo(weight.dtype).eps)
        with unchanged(list(found.module.modules())), torch.no_grad():
            if not (weight.shape == tensor.shape and torch.equal(weight, found.read())):
                return False  # part of the weight, or computed further
            noise = torch.empty_like(weight).normal_(0, std, generator=generator)
            try:
                self.write(name, noise)
                return torch.allclose(found.read(), noise, rtol=rounding, atol=rounding * std)
            except Exception:  # whatever an incorrect inverse raises
                return False

    @torch.no_grad()
    def write(self, name: str, weight: Tensor) -> None:
        """Gives a computed weight these values by setting the parameters it is computed from."""
        found = self._parametrized[name]
        values = found.inverse(weight)
        for (_, parameter), value in zip(found.originals, values, strict=True):
            parameter.copy_(value)

    @torch.no_grad()
    def refresh(self, name: str) -> None:
        """Updates the weight that a hook stores on its module before the next pass."""
        found = self._parametrized[name]
        if found.attribute:
            setattr(found.module, found.attribute, found.read())

    def read_parametrizations(self) -> None:
        """Records the weights of all parametrizations, since a trace by torch.fx runs none of them.

        Must be called inside `torch.nn.utils.parametrize.cached`.
        """
        for module in self._model.modules() if self._parametrized else ():
            if is_parametrized(module):
                for name, owner in module.parametrizations.items():  # type: ignore[union-attr,operator]
                    largest = max(reversed([*owner.parameters()]), key=Tensor.numel)
                    path = self.name(largest)
                    if path is not None and largest.dim() > 1:
                        self.derive(path, getattr(module, name), owner)

    def exponent(self, tensor: Tensor) -> float:
        """Returns the power of its parameter's scale that a computed weight follows.

        It is 1 for a multiple of the parameter and 0 for a standardized or normalized weight, whose
        scale doesn't depend on the parameter's.
        """
        name = self.name(tensor)
        if name is None or id(tensor) not in self._derived or isinstance(tensor, FakeTensor):
            return 1.0
        parameter = self._parameter(name)
        factor = 2.0 if (2 * parameter.detach()).isfinite().all() else 0.5
        before = _size(self.again(tensor))
        with _put_back(parameter):
            parameter.data.mul_(factor)
            after = _size(self.again(tensor))
        if not (0 < before < math.inf and 0 < after < math.inf):
            return 1.0
        return math.log(after / before, factor)

    def _parameter(self, name: str) -> nn.Parameter:
        """Returns the parameter at a path, even if torch.func.functional_call has replaced it."""
        try:
            return self._model.get_parameter(name)
        except AttributeError:
            return next(each for each, path in self._names.values() if path == name)

    def _find_parametrized(self, path: str, module: nn.Module) -> None:
        prefix = f"{path}." if path else ""
        for names, read, inverse, attribute in _computations(module):
            originals = [(f"{prefix}{name}", module.get_parameter(name)) for name in names]
            found = Parametrized(module, originals, read, inverse, attribute)
            self._parametrized.update({name: found for name, _ in originals})
            if attribute:
                # A trace by torch.fx runs no hook; it sees what the hook computed last.
                self.derive(originals[-1][0], getattr(module, attribute), read)

    def _scan(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._names.setdefault(id(parameter), (parameter, name))


@contextlib.contextmanager
def _put_back(tensor: Tensor) -> Iterator[None]:
    """Restores the values of a tensor at the end of the block."""
    kept = tensor.detach().clone()
    try:
        yield
    finally:
        tensor.data.copy_(kept)


def _item(again: Callable[[], Any], index: int) -> Any:
    return again()[index]


def _size(tensor: Tensor) -> float:
    """Returns the norm, which may be larger than half precision can hold."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    return float(wide.norm())


def _computations(
    module: nn.Module,
) -> Iterator[tuple[list[str], Callable[[], Tensor], Callable[[Tensor], Sequence[Tensor]], str]]:
    """Yields, for each weight a module computes, parameter names and the rest of `Parametrized`."""
    if isinstance(module, ParametrizationList):
        names = [name for name in module._parameters if name.startswith("original")]
        yield names, module, partial(_through_inverses, module), ""
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, WeightNorm):
            names = [f"{hook.name}_g", f"{hook.name}_v"]
            inverse = partial(_length_and_direction, hook.dim)
            yield names, partial(hook.compute_weight, module), inverse, hook.name
        elif isinstance(hook, SpectralNorm):
            names = [f"{hook.name}_orig"]
            yield names, partial(_in_training, hook, module), _without_inverse, hook.name


def _through_inverses(owner: ParametrizationList, weight: Any) -> Sequence[Tensor]:
    parts: list[Any] = [*owner]
    for parametrization in reversed(parts):
        weight = parametrization.right_inverse(weight)
    return [weight] if isinstance(weight, Tensor) else weight


def _in_training(hook: SpectralNorm, module: nn.Module) -> Tensor:
    """Returns the weight that a training step would have, and restores the vectors."""
    vectors = [module.get_buffer(f"{hook.name}_{letter}") for letter in "uv"]
    kept = [vector.clone() for vector in vectors]
    try:
        weight: Tensor = hook.compute_weight(module, do_power_iteration=True)
    finally:
        for vector, values in zip(vectors, kept, strict=True):
            vector.copy_(values)
    return weight


def _length_and_direction(dim: int, weight: Tensor) -> Sequence[Tensor]:
    return torch.norm_except_dim(weight, 2, dim), weight


def _without_inverse(weight: Tensor) -> Sequence[Tensor]:
    raise NotImplementedError


def place(tensor: Tensor) -> tuple[Any, ...]:
    """Returns a tensor's place in memory: equal for two objects that are the same view of it."""
    if tensor.layout != torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (id(tensor),)
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
    )


@torch.no_grad()
def is_zero(weight: Tensor) -> bool:
    """Returns whether a tensor has elements and all of them are zero."""
    if isinstance(weight, FakeTensor):
        return False
    whole: Tensor = weight.full_tensor() if hasattr(weight, "full_tensor") else weight  # sharded
    # In most tensors the first element isn't zero, and the rest need not be read.
    return whole.numel() > 0 and not whole[(0,) * whole.dim()].item() and not whole.any().item()


Key = tuple[str, int, torch.Size]
"""Identifies a weight in any pass: path of the parameter, offset in it, and shape."""


class Uses(NamedTuple):
    """How layers use parameters."""

    keys: list[Key | None]
    """Key of each layer's weight; uses that share elements share a key, however they view them."""
    widest: dict[Key | None, Tensor]
    """Use that takes the most elements, by key."""
    entangled: set[str]
    """Paths of parameters whose uses share some elements and differ in others."""


def uses_of(layers: Sequence[Layer | None], weights: Weights) -> Uses:
    """Determines which layers use the same elements of a parameter."""
    found = Uses([None] * len(layers), {}, set())
    by_name: dict[str, list[int]] = {}
    for index, layer in enumerate(layers):
        key = None if layer is None else weights.key(layer.weight)
        found.keys[index] = key
        if key is not None and layer is not None:
            found.widest.setdefault(key, layer.weight)
            by_name.setdefault(key[0], []).append(index)
    for name, indices in by_name.items():
        if len(indices) > 1:
            tensors = {index: each.weight for index in indices if (each := layers[index])}
            _join(found, name, tensors, weights)
    return found


def _join(found: Uses, name: str, tensors: Mapping[int, Tensor], weights: Weights) -> None:
    """Gives uses of one parameter that share elements the key of the first of them.

    A map of the parameter records which use took each element first, so that each use is examined
    once instead of being compared with every other.
    """
    views = {index: weights.elements(tensor) for index, tensor in tensors.items()}
    if len(set(views.values())) == 1:
        return
    owners = torch.full((max(map(extent, views.values())),), -1, dtype=torch.int32, device="cpu")
    firsts: list[int] = []
    counts: list[int] = []
    for index, view in views.items():
        own = owners.as_strided(*view)
        taken = own[own >= 0]
        if taken.numel() == 0:
            own.fill_(len(firsts))
            firsts.append(index)
            counts.append(own.numel())
            continue
        owner = int(taken.min())
        key = found.keys[index] = found.keys[firsts[owner]]
        if not own.numel() == counts[owner] == int((own == owner).sum()):
            found.entangled.add(name)
        widest = found.widest[key]
        if own.numel() > owners.as_strided(*weights.elements(widest)).numel():
            found.widest[key] = tensors[index]


def taken_elsewhere(
    calls: Sequence[Call], layers: Sequence[Layer | None], weights: Weights
) -> set[str]:
    """Returns paths of parameters that calls use for something other than a layer's weight."""
    found: set[str | None] = set()
    for call, layer in zip(calls, layers, strict=True):
        if layer is None:
            own = call.target.parameters() if isinstance(call.target, nn.Module) else ()
            found.update(map(weights.name, [*tensors_in((call.args, call.kwargs)), *own]))
    return {name for name in found if name is not None}
