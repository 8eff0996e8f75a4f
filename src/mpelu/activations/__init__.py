"""The table of activations that networks, parameter groups, initialization and the lab share.

Importing it doesn't import torch; building or describing a module does.
"""

from mpelu.activations.lookup import is_reference, register_activation, resolve
from mpelu.activations.table import (
    KINDS,
    TABLE,
    ActivationRecord,
    LearnableParameter,
    describe,
    find_activation,
    find_function,
    learnable_parameters,
)

__all__ = [
    "KINDS",
    "TABLE",
    "ActivationRecord",
    "LearnableParameter",
    "describe",
    "find_activation",
    "find_function",
    "is_reference",
    "learnable_parameters",
    "register_activation",
    "resolve",
]


def __dir__() -> list[str]:
    return __all__
