"""MPELU for PyTorch: a learnable activation and the initialization that goes with it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpelu import functional, kernels
from mpelu.functional import mpelu
from mpelu.modules import MPELU
from mpelu.moments import moments

if TYPE_CHECKING:
    from mpelu import init, models

__all__ = ["MPELU", "functional", "init", "kernels", "models", "moments", "mpelu"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # These two take longer to load than all the rest, so they wait for their first use.
    if name in ("init", "models"):
        return import_module(f"mpelu.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
