"""Activations: one table that networks, parameter groups, initialization and the lab read.

Importing it doesn't import torch; building or describing a module does.
"""

from mpelu.activations.lookup import (
    describe,
    find_activation,
    find_function,
    is_reference,
    known_function,
    learnable_parameters,
    register_activation,
    resolve,
    slopes_at_zero,
)
from mpelu.activations.record import KINDS, ActivationRecord, LearnableParameter
from mpelu.activations.table import TABLE

__all__ = [
    "KINDS",
    "TABLE",
    "ActivationRecord",
    "LearnableParameter",
    "describe",
    "find_activation",
    "find_function",
    "is_reference",
    "known_function",
    "learnable_parameters",
    "register_activation",
    "resolve",
    "slopes_at_zero",
]
