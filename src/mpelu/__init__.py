"""MPELU for PyTorch: a learnable activation and the initialization that goes with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpelu import (
        activations,
        converting,
        diagnosis,
        functional,
        init,
        kernels,
        models,
        theory,
    )
    from mpelu.activations import register_activation
    from mpelu.converting import convert
    from mpelu.diagnosis import diagnose
    from mpelu.functional import mpelu
    from mpelu.gaussian import moments
    from mpelu.modules import MPELU, LazyMPELU
    from mpelu.optim import param_groups

__all__ = [
    "MPELU",
    "LazyMPELU",
    "activations",
    "convert",
    "converting",
    "diagnose",
    "diagnosis",
    "functional",
    "init",
    "kernels",
    "models",
    "moments",
    "mpelu",
    "param_groups",
    "register_activation",
    "theory",
]
__version__ = "0.1.0"

# Everything is imported on first use, so that `mpelu --help` answers without loading torch.
_HOMES = {
    "LazyMPELU": "mpelu.modules",
    "MPELU": "mpelu.modules",
    "convert": "mpelu.converting",
    "diagnose": "mpelu.diagnosis",
    "moments": "mpelu.gaussian",
    "mpelu": "mpelu.functional",
    "param_groups": "mpelu.optim",
    "register_activation": "mpelu.activations",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    if name in __all__:
        return import_module(f"mpelu.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
