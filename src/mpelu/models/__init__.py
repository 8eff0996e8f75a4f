"""Every network of the paper, by name.

Example:
    >>> from mpelu import models
    >>> network = models.create("nopre-resnet-164", num_classes=100)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpelu.models.registry import create, names

__all__ = ["create", "names"]


def __getattr__(name: str) -> Any:
    # Loading the networks takes longer than all else in the package: at their first use.
    if name in __all__:
        from mpelu.models import registry

        return getattr(registry, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
