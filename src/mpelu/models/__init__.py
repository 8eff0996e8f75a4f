"""Every network of the paper, by name.

Example:
    >>> from mpelu import models
    >>> network = models.create("nopre-resnet-164", num_classes=100)
"""

from mpelu.models.registry import create, names

__all__ = ["create", "names"]


def __dir__() -> list[str]:
    return __all__
