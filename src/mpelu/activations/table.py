"""The table of activations. Importing it doesn't import torch; building a module does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mpelu.activations.record import ActivationRecord, LearnableParameter

if TYPE_CHECKING:
    from torch import nn

    from mpelu.elementwise import ElementwiseFunction

# The constants of torch.nn.SELU, which does not export them.
_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946
_RRELU = (1 / 8, 1 / 3)


def _torch(name: str) -> Callable[[int], nn.Module]:
    """Builds a class of torch.nn that takes no options."""

    def build(channels: int) -> nn.Module:
        from torch import nn

        module: nn.Module = getattr(nn, name)()
        return module

    return build


def _leaky_relu(channels: int, alpha: float = 0.01) -> nn.Module:
    from torch import nn

    return nn.LeakyReLU(alpha)


def _prelu(channels: int, alpha: float = 0.25) -> nn.Module:
    from torch import nn

    return nn.PReLU(channels, alpha)


def _rrelu(channels: int) -> nn.Module:
    from torch import nn

    return nn.RReLU(*_RRELU)


def _elu(channels: int, alpha: float = 1.0) -> nn.Module:
    from torch import nn

    return nn.ELU(alpha)


def _celu(channels: int, alpha: float = 1.0) -> nn.Module:
    from torch import nn

    return nn.CELU(alpha)


def _srelu(channels: int, alpha: float = 0.2, dim: int = 1) -> nn.Module:
    from mpelu.activations.parametric import SReLU

    return SReLU(channels, alpha, dim=dim)


def _pelu(channels: int, dim: int = 1) -> nn.Module:
    from mpelu.activations.parametric import PELU

    return PELU(channels, dim=dim)


def _mpelu(channels: int, alpha: float = 1.0, beta: float = 1.0, dim: int = 1) -> nn.Module:
    from mpelu.modules import MPELU

    placed: dict[str, Any] = {} if dim == 1 else {"dim": dim}
    return MPELU(channels, alpha, beta, **placed)


def _leaky(slope: Callable[[Any], Any]) -> Callable[[Any], ElementwiseFunction]:
    """The function of a module, from its slope below zero."""

    def function(module: Any) -> ElementwiseFunction:
        from mpelu.elementwise import leaky

        return leaky(slope(module), type(module).__name__)

    return function


def _exponential(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], ElementwiseFunction]:
    """The function of a module, from its alpha, beta and scale (default: 1)."""

    def function(module: Any) -> ElementwiseFunction:
        from mpelu.elementwise import exponential

        alpha, beta, *scale = values(module)
        return exponential(alpha, beta, scale[0] if scale else 1.0, type(module).__name__)

    return function


def _mpelu_values(module: Any) -> tuple[Any, Any]:
    from mpelu.functional import MIN_BETA

    return module.alpha, module.beta.clamp(min=MIN_BETA)


def _pelu_values(module: Any) -> tuple[Any, Any, Any]:
    """PELU is a / b times y for y > 0, b (e^(y / b) - 1) otherwise."""
    a, b = module.a.double().clamp(min=module.MINIMUM), module.b.double().clamp(min=module.MINIMUM)
    return b, 1 / b, a / b


def _srelu_function(module: Any) -> ElementwiseFunction:
    from mpelu.elementwise import LINEAR, as_value
    from mpelu.graph import elementwise

    found = elementwise(module)
    assert found is not None
    thresholds = (module.left_threshold.double(), module.right_threshold.double())
    return found if found is LINEAR else replace(found, kinks=tuple(map(as_value, thresholds)))


_TORCH = "torch.nn.modules.activation"
TABLE: dict[str, ActivationRecord] = {
    record.name: record
    for record in (
        ActivationRecord(
            name="relu", label="ReLU", color="#000000", build=_torch("ReLU"),
            module=f"{_TORCH}:ReLU", slopes=lambda: (0.0, 1.0), function=_leaky(lambda m: 0.0),
        ),
        ActivationRecord(
            name="leaky_relu", label="leaky ReLU", color="#56B4E9", build=_leaky_relu,
            module=f"{_TORCH}:LeakyReLU", slopes=lambda alpha: (alpha, 1.0),
            function=_leaky(lambda m: m.negative_slope),
        ),
        ActivationRecord(
            name="prelu", label="PReLU", color="#0072B2", build=_prelu,
            module=f"{_TORCH}:PReLU", slopes=lambda alpha: (alpha, 1.0),
            function=_leaky(lambda m: m.weight),
            parameters=(LearnableParameter(attribute="weight", kind="slope", symbol="slope"),),
        ),
        ActivationRecord(
            name="rrelu", label="RReLU", color="#E69F00", build=_rrelu,
            module=f"{_TORCH}:RReLU", slopes=lambda: (sum(_RRELU) / 2, 1.0),
            function=_leaky(lambda m: (m.lower + m.upper) / 2),
        ),
        ActivationRecord(
            name="elu", label="ELU", color="#009E73", build=_elu,
            module=f"{_TORCH}:ELU", slopes=lambda alpha: (alpha, 1.0),
            function=_exponential(lambda m: (m.alpha, 1.0)),
        ),
        ActivationRecord(
            name="celu", label="CELU", color="#117733", build=_celu,
            module=f"{_TORCH}:CELU", slopes=lambda alpha: (1.0, 1.0),
            function=_exponential(lambda m: (m.alpha, 1 / m.alpha)),
        ),
        ActivationRecord(
            name="srelu", label="SReLU", color="#CC79A7", build=_srelu,
            module="mpelu.activations.parametric:SReLU", slopes=lambda alpha: (alpha, 1.0),
            function=_srelu_function,
            parameters=tuple(
                LearnableParameter(attribute=each, kind="piece", symbol=each.replace("_", " "))
                for each in ("right_threshold", "right_slope", "left_threshold", "left_slope")
            ),
        ),
        ActivationRecord(
            name="selu", label="SELU", color="#44AA99", build=_torch("SELU"),
            module=f"{_TORCH}:SELU", slopes=lambda: (_SELU_SCALE * _SELU_ALPHA, _SELU_SCALE),
            function=_exponential(lambda m: (_SELU_ALPHA, 1.0, _SELU_SCALE)),
        ),
        ActivationRecord(
            name="gelu", label="GELU", color="#332288", build=_torch("GELU"),
            module=f"{_TORCH}:GELU", slopes=lambda: (0.5, 0.5),
        ),
        ActivationRecord(
            name="silu", label="SiLU", color="#882255", build=_torch("SiLU"),
            module=f"{_TORCH}:SiLU", slopes=lambda: (0.5, 0.5),
        ),
        ActivationRecord(
            name="mish", label="Mish", color="#AA4499", build=_torch("Mish"),
            module=f"{_TORCH}:Mish", slopes=lambda: (0.6, 0.6),
        ),
        ActivationRecord(
            name="relu6", label="ReLU6", color="#661100", build=_torch("ReLU6"),
            module=f"{_TORCH}:ReLU6", slopes=lambda: (0.0, 1.0),
        ),
        ActivationRecord(
            name="hardswish", label="hard swish", color="#6699CC", build=_torch("Hardswish"),
            module=f"{_TORCH}:Hardswish", slopes=lambda: (0.5, 0.5),
        ),
        ActivationRecord(
            name="pelu", label="PELU", color="#999933", build=_pelu,
            module="mpelu.activations.parametric:PELU", slopes=lambda: (1.0, 1.0),
            function=_exponential(_pelu_values),
            parameters=(
                LearnableParameter(attribute="a", kind="scale"),
                LearnableParameter(attribute="b", kind="rate"),
            ),
        ),
        ActivationRecord(
            name="mpelu", label="MPELU", color="#D55E00", build=_mpelu,
            module="mpelu.modules:MPELU", slopes=lambda alpha, beta: (alpha * beta, 1.0),
            function=_exponential(_mpelu_values),
            parameters=(
                LearnableParameter(attribute="alpha", kind="scale", symbol="α"),
                LearnableParameter(attribute="beta", kind="rate", symbol="β"),
            ),
        ),
        ActivationRecord(
            name="identity", label="identity", color="#999999", build=_torch("Identity"),
            slopes=lambda: (1.0, 1.0), function=_leaky(lambda m: 1.0),
        ),
    )
}  # fmt: skip
"""By name, in the order of lists and help texts."""
