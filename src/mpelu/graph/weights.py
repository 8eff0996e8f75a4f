"""Which parameter a tensor is, or was computed from."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.parametrize import ParametrizationList

Elements = tuple[tuple[int, ...], tuple[int, ...], int]
"""Sizes, strides and offset of a view of a parameter's memory."""


def extent(elements: Elements) -> int:
    """How far a view reaches into the memory."""
    sizes, strides, offset = elements
    return offset + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True)) + 1


class Weights:
    """Which parameter a tensor is, or was computed from by functions of parameters alone.

    Views of packed weights, weights under a parametrization and standardized weights are such
    tensors.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._names: dict[int, tuple[nn.Parameter, str]] = {}
        self._derived: dict[int, tuple[Tensor, str, Callable[[], Any]]] = {}
        self.used: dict[str, str] = {}
        """The function that last took each parameter, by the parameter's path."""
        self._scan()

    def name(self, tensor: Tensor) -> str | None:
        """Path of the parameter, or None for any other tensor."""
        found = self._names.get(id(tensor)) or self._derived.get(id(tensor))
        if found is None and isinstance(tensor, nn.Parameter):
            self._scan()  # FSDP puts whole parameters in place of its shards during a pass
            found = self._names.get(id(tensor))
        return None if found is None else found[1]

    def key(self, tensor: Tensor) -> tuple[str, int, torch.Size] | None:
        """Tells a weight, or part of a packed one, from others; the same in every pass."""
        name = self.name(tensor)
        if name is None:
            return None
        is_part = id(tensor) not in self._names and isinstance(tensor._base, nn.Parameter)
        return name, int(tensor.storage_offset()) if is_part else 0, tensor.shape

    def elements(self, tensor: Tensor) -> Elements:
        """The elements of its parameter that a tensor is; all, if it was computed from it."""
        name = self.name(tensor)
        assert name is not None
        parameter = self._parameter(name)
        is_part = id(tensor) not in self._names and isinstance(tensor._base, nn.Parameter)
        if not is_part:
            return (parameter.numel(),), (1,), 0
        offset = int(tensor.storage_offset() - parameter.storage_offset())
        # An expanded dimension shows the same elements again.
        axes = [each for each in zip(tensor.shape, tensor.stride(), strict=True) if each[1]]
        return tuple(size for size, _ in axes), tuple(step for _, step in axes), offset

    def takes_noise(self, name: str, std: float) -> bool:
        """Whether a weight under a parametrization is one if its parameter has random values."""
        path, _, _ = name.rpartition(".")
        owner = self._model.get_submodule(path)
        if not isinstance(owner, ParametrizationList):
            return True
        parameter = self._parameter(name)
        kept = parameter.detach().clone()
        generator = torch.Generator(parameter.device).manual_seed(0)
        try:
            with torch.no_grad():
                parameter.normal_(0, std, generator=generator)
                size = _size(parameter)
                found = _size(owner()) / size if size > 0 else 0.0
        finally:
            parameter.data.copy_(kept)
        return 0.1 < found < math.inf

    def is_computed(self, tensor: Tensor) -> bool:
        """Whether the tensor was computed from a parameter, rather than being one or part of it."""
        if id(tensor) not in self._derived or isinstance(tensor._base, nn.Parameter):
            return False
        parameter = self._parameter(self._derived[id(tensor)][1])
        # Views made below autograd have no base, but share the memory.
        return bool(place(tensor)[0] != place(parameter)[0])

    def is_trained(self, tensor: Tensor) -> bool:
        """Whether the parameter that a tensor is, or comes from, is trained."""
        if id(tensor) in self._names:
            return tensor.requires_grad
        name = self.name(tensor)
        return name is not None and self._parameter(name).requires_grad

    def derive(self, name: str, output: Any, again: Callable[[], Any]) -> None:
        """Notes that an output was computed from a parameter, and how to compute it again."""
        for index, tensor in enumerate([output] if isinstance(output, Tensor) else output):
            if isinstance(tensor, Tensor) and id(tensor) not in self._names:
                part = again if isinstance(output, Tensor) else partial(_item, again, index)
                # Kept alive, so that no other tensor gets the same id.
                self._derived[id(tensor)] = tensor, name, part

    def derive_like(self, tensor: Tensor, other: Tensor) -> None:
        """Notes that another tensor was computed as one that is noted already."""
        found = self._derived.get(id(tensor))
        if found is not None:
            self._derived[id(other)] = other, found[1], found[2]

    def again(self, tensor: Tensor) -> Tensor:
        """The tensor computed again from the parameters as they are now."""
        again: Tensor = self.maker(tensor)()
        return again

    def maker(self, tensor: Tensor) -> Callable[[], Any]:
        """What computes the tensor again, as far as is known by now."""
        derived = self._derived.get(id(tensor))
        return (lambda: tensor) if derived is None else derived[2]

    def has_state(self, name: str) -> bool:
        """Whether a parametrization of the parameter keeps buffers, as a spectral norm does."""
        owner = self._model.get_submodule(name.rpartition(".")[0])
        return isinstance(owner, ParametrizationList) and any(True for _ in owner.buffers())

    def exponent(self, tensor: Tensor) -> float:
        """The power of its parameter's scale that a computed weight follows.

        1 for a multiple of the parameter; 0 for a standardized or normalized weight, whose scale
        doesn't depend on that of the parameter.
        """
        name = self.name(tensor)
        if name is None or id(tensor) not in self._derived or _is_fake(tensor):
            return 1.0
        parameter = self._parameter(name)
        kept = parameter.detach().clone()
        factor = 2.0 if (2 * kept).isfinite().all() else 0.5
        before = _size(self.again(tensor))
        try:
            parameter.data.mul_(factor)
            after = _size(self.again(tensor))
        finally:
            parameter.data.copy_(kept)
        if not (0 < before < math.inf and 0 < after < math.inf):
            return 1.0
        return math.log(after / before, factor)

    def _parameter(self, name: str) -> nn.Parameter:
        """The parameter of a path, also while torch.func.functional_call has put another there."""
        try:
            return self._model.get_parameter(name)
        except AttributeError:
            return next(each for each, path in self._names.values() if path == name)

    def _scan(self) -> None:
        for name, parameter in self._model.named_parameters():
            self._names.setdefault(id(parameter), (parameter, name))


def _item(again: Callable[[], Any], index: int) -> Any:
    return again()[index]


def _size(tensor: Tensor) -> float:
    """The norm, which may be larger than half precision can hold."""
    wide = tensor.detach().to(torch.promote_types(tensor.dtype, torch.float32))
    return float(wide.norm())


def _is_fake(tensor: Tensor) -> bool:
    return isinstance(tensor, FakeTensor)


def place(tensor: Tensor) -> tuple[Any, ...]:
    """Where a tensor lies: equal for two objects that are one and the same view of one memory."""
    if tensor.layout != torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (id(tensor),)
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tuple(tensor.shape),
        tensor.stride(),
    )
