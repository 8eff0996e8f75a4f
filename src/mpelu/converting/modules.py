"""Modules for activations that are called with several widths, or with widths not known yet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.modules import MPELU, LazyMPELU


class MPELUByWidth(nn.Module):
    """One MPELU per width, for an activation that a model calls on tensors of several widths.

    The number of channels of an input selects the MPELU.

    Args:
        activations: one MPELU for each width, all with the same `dim`.

    Attributes:
        widths: torch.nn.ModuleDict of the MPELUs by width.
        dim: dimension of the channels; None until the first input if the widths come from a
            state_dict.

    Example:
        >>> activation = MPELUByWidth([mpelu.MPELU(64), mpelu.MPELU(256)])
        >>> activation(torch.randn(2, 256, 7, 7)).shape
        torch.Size([2, 256, 7, 7])
        >>> sorted(activation.state_dict())
        ['widths.256.alpha', 'widths.256.beta', 'widths.64.alpha', 'widths.64.beta']
    """

    def __init__(self, activations: Sequence[MPELU]) -> None:
        super().__init__()
        self.dim: int | None = activations[0].dim
        self.widths = nn.ModuleDict({str(each.num_parameters): each for each in activations})

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is None:
            self._set_dim(_dim_by_size(input, [int(width) for width in self.widths]))
        in_range = -input.dim() <= self.dim < input.dim()  # type: ignore[operator]
        width = str(input.size(self.dim)) if in_range else "no"
        if width not in self.widths:
            raise ValueError(
                f"MPELUByWidth: expected {' or '.join(self.widths)} channels in dimension "
                f"{self.dim}, the widths this model was converted for, got {width} in input of "
                f"shape {list(input.shape)}; convert with inputs that have this width"
            )
        output: Tensor = self.widths[width](input)
        return output

    def _set_dim(self, dim: int) -> None:
        self.dim = dim
        for activation in self.widths.values():
            activation.dim = dim  # type: ignore[assignment]

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class _GrowingByWidth(MPELUByWidth):
    """Adds an MPELU for every new width until it was called as often as in one forward pass."""

    options: dict[str, Any]
    is_trained: bool
    calls_left: int

    def forward(self, input: Tensor) -> Tensor:
        if self.dim is None:
            self.dim = _first_dim(input)
        width = str(input.size(self.dim))
        if width not in self.widths:
            self.widths[width] = _made(self, int(width), self.dim)
        self.calls_left -= 1
        activation = self.widths[width]
        if self.calls_left == 0:
            _settle(self)
        output: Tensor = activation(input)
        return output


class PendingMPELU(LazyMPELU):
    """Becomes an `MPELU` or an `MPELUByWidth` when it loads a state_dict or gets its first inputs.

    `convert` puts it in models that it gets without example inputs.

    Args:
        start: initial numbers by name: alpha and beta, or slope and rate.
        dim: dimension of the channels, if it is known.
        calls: number of calls in a forward pass, each of which may have a width of its own.
        inplace: overwrite the input.
        device: device of the parameters.
        dtype: data type of the parameters.
        requires_grad: whether the parameters are trained.
    """

    def __init__(
        self,
        start: Mapping[str, float],
        *,
        dim: int | None = None,
        calls: int = 1,
        inplace: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = True,
    ) -> None:
        super().__init__(**start, dim=dim, inplace=inplace, device=device, dtype=dtype)
        for parameter in self.parameters():  # uninitialized, so not by requires_grad_
            parameter.requires_grad = requires_grad
        self.calls, self.is_trained = calls, requires_grad
        self.options: dict[str, Any] = {**start, "inplace": inplace}

    def forward(self, input: Tensor) -> Tensor:
        # The hook of lazy modules has changed the class of this one by now.
        output: Tensor = type(self).forward(self, input)
        return output

    def initialize_parameters(self, input: Tensor) -> None:
        """Sets the shapes of the parameters from the first input."""
        if not self.has_uninitialized_params() and not self.dim_is_given:
            self.dim = _dim_by_size(input, [self._first.numel()])
        super().initialize_parameters(input)

    def _infer_parameters(self, module: Any, args: Any, kwargs: Any = None) -> None:
        if self.calls > 1 and self.has_uninitialized_params():
            self._become(_GrowingByWidth).calls_left = self.calls
            return
        super()._infer_parameters(module, args, kwargs)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        pattern = re.compile(re.escape(prefix) + r"widths\.(\d+)\.(?:alpha|slope)")
        found = [match for key in state_dict if (match := pattern.fullmatch(key))]
        if found:
            grown = self._become(MPELUByWidth)
            for match in found:
                width = match[1]
                grown.widths[width] = _made(grown, int(width), grown.dim or 1)
            nn.Module._load_from_state_dict(self, state_dict, prefix, *rest)
            return
        MPELU._load_from_state_dict(self, state_dict, prefix, *rest)
        if self.dim_is_given and not self.has_uninitialized_params():
            self.num_parameters = self._first.numel()
            self._forget_hooks()
            self.__class__ = MPELU  # type: ignore[assignment]

    @property
    def _first(self) -> nn.Parameter:
        """The first of its two parameters, whichever they are."""
        return next(self.parameters())

    def _forget_hooks(self) -> None:
        self._initialize_hook.remove()
        self._load_hook.remove()
        del self._initialize_hook, self._load_hook

    def _become(self, kind: type[MPELUByWidth]) -> Any:
        """Changes the class of this module to one without parameters of its own."""
        device, dtype = self._first.device, self._first.dtype
        self._forget_hooks()
        self._parameters.clear()
        self.dim: Any = self.dim if self.dim_is_given else None
        self.options.update(device=device, dtype=dtype)
        self.__class__ = kind  # type: ignore[assignment]
        self.widths = nn.ModuleDict()
        return self


def _settle(module: _GrowingByWidth) -> None:
    """Ends the growth; a module with a single width becomes an MPELU."""
    widths = list(module.widths.values())
    for width in widths:
        width.train(module.training)
    if len(widths) > 1:
        module.__class__ = MPELUByWidth  # type: ignore[assignment]
        return
    (only,) = widths
    del module.widths, module.calls_left
    module.__class__ = MPELU  # type: ignore[assignment]
    module.__dict__.update(
        {name: value for name, value in vars(only).items() if not name.startswith("_")}
    )
    module._parameters.update(only._parameters)


def _made(module: _GrowingByWidth, width: int, dim: int) -> MPELU:
    return MPELU(width, dim=dim, **module.options).requires_grad_(module.is_trained)


def _first_dim(input: Tensor) -> int:
    """The dimension of the channels where nothing but the input is known, as for LazyMPELU."""
    if input.dim() == 3:
        raise ValueError(
            "convert: expected dim=1 or dim=-1 to be given for input of 3 dimensions, which may "
            f"be [batch, channels, length] or [batch, length, channels]; got {list(input.shape)}"
        )
    return 1 if input.dim() > 1 else -1


def _dim_by_size(input: Tensor, widths: Sequence[int]) -> int:
    """The dimension, 1 or -1, whose size is that of the loaded parameters."""
    if widths == [1]:
        return 1
    ends = [1, -1] if input.dim() > 2 else [-1] if input.dim() == 1 else [1]
    fitting = [dim for dim in ends if input.size(dim) in widths]
    if len(fitting) == 1:
        return fitting[0]
    raise ValueError(
        f"convert: expected dim=1 or dim=-1 to be given, got input of shape {list(input.shape)} "
        f"for parameters of {' or '.join(map(str, widths))} channels, which "
        f"{'fit both' if fitting else 'fit neither'}; convert with dim=, or with inputs"
    )
