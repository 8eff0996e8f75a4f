"""What convert refuses, in one line each."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from mpelu.converting.recognize import recognize
from mpelu.converting.report import ConvertedActivation
from mpelu.graph import unwrap
from mpelu.modules import MIN_BETA, MPELU


def check_model(caller: str, model: Any) -> None:
    """Raises for what holds no activations that can be swapped."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"{caller}: expected a torch.nn.Module, got {type(model).__name__}")
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"{caller}: expected a model of Python code, got {name}; convert it before scripting"
        )
    if unwrap(model) is not model:
        raise ValueError(
            f"{caller}: expected a model that isn't wrapped, got {name}; convert it first"
        )
    if recognize(model) is not None:
        raise ValueError(
            f"{caller}: expected a model that contains activations, got an activation, {name}"
        )
    for path, module in model.named_modules():
        kind = type(module)
        if any("fsdp" in base.__module__ for base in kind.__mro__):
            raise ValueError(
                f"{caller}: expected a model that isn't sharded, got {kind.__name__} at "
                f"{path or 'the top'}; convert it before fully_shard"
            )
        if module._compiled_call_impl is not None or hasattr(module, "_orig_mod"):
            raise ValueError(
                f"{caller}: expected a model that isn't compiled, got a compiled {kind.__name__} "
                f"at {path or 'the top'}; convert it before torch.compile"
            )
        if any(is_lazy(each) for each in module.parameters(recurse=False)):
            raise ValueError(
                f"{caller}: expected weights with a shape, got a lazy {kind.__name__} at {path}; "
                "run a batch first"
            )
        if kind.__module__.startswith(("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")):
            raise ValueError(
                f"{caller}: expected a model of real numbers, got a quantized {kind.__name__} at "
                f"{path}; convert it before quantization"
            )


def check_memory(caller: str, model: nn.Module) -> None:
    """Raises for a model that can't run, since its weights are on the meta device."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta:
            raise ValueError(
                f"{caller}: expected weights with memory, got {name} on meta; leave example_inputs "
                "out, or load the weights first"
            )


def check_options(
    replace: Any,
    alpha: float | None,
    beta: float | None,
    keep_function: bool,
    dim: int | Mapping[str, int] | None,
) -> None:
    """Raises for options that don't fit."""
    if replace is not None and (
        isinstance(replace, (str, type))
        or not all(isinstance(each, type) and issubclass(each, nn.Module) for each in replace)
    ):
        raise TypeError(
            f"convert: expected replace as a tuple of module classes, such as (nn.ReLU,), got "
            f"{replace!r}"
        )
    if replace is not None and not replace:
        raise ValueError("convert: expected at least one class in replace, got none")
    if keep_function and alpha is not None:
        raise ValueError(
            f"convert: expected alpha=None with keep_function=True, which sets it, got {alpha}"
        )
    if alpha is not None and not math.isfinite(alpha):
        raise ValueError(f"convert: expected finite alpha, got {alpha}")
    if beta is not None and not (math.isfinite(beta) and beta >= MIN_BETA):
        raise ValueError(f"convert: expected beta >= {MIN_BETA}, got {beta}")
    for value in dim.values() if isinstance(dim, Mapping) else [dim]:
        if value is not None and not isinstance(value, int):
            raise TypeError(f"convert: expected dim as an integer, got {value!r}")


def check_paths(
    skip: Sequence[str], dim: int | Mapping[str, int] | None, model: nn.Module, found: Sequence[str]
) -> None:
    """Raises for paths that the model doesn't have."""
    modules = [path for path, _ in model.named_modules()]
    for pattern in skip:
        if not any(is_skipped(path, [pattern]) for path in [*modules, *found]):
            raise ValueError(
                f"convert: expected skip to name modules of the model, got {pattern!r}"
            )
    for path in dim if isinstance(dim, Mapping) else ():
        if path not in found:
            raise ValueError(
                f"convert: expected dim to name activations, such as {', '.join(found[:3])}; got "
                f"{path!r}"
            )


def is_skipped(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path, or one that contains it, matches a pattern."""
    parts = path.split(".")
    above = [".".join(parts[: count + 1]) for count in range(len(parts))]
    return any(fnmatch.fnmatchcase(each, pattern) for each in above for pattern in patterns)


def nothing_to_swap(model: nn.Module, rows: Sequence[ConvertedActivation]) -> str:
    """Says that, and what there is."""
    name = type(model).__name__
    count = sum(isinstance(module, MPELU) for module in model.modules())
    already = f"{count} MPELU{'s' if count > 1 else ''}"
    if not rows and count:
        return f"convert: {name} is converted already: it has {already} and nothing else to swap"
    if not rows:
        return (
            f"convert: expected a model with activations, found none in {name}; name their classes "
            "with replace="
        )
    reasons = list(dict.fromkeys(f"{row.was} at {row.path or name}: {row.note}" for row in rows))
    more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
    which = f", which has {already} already" if count else ""
    return f"convert: nothing to swap in {name}{which}; {', '.join(reasons[:3])}{more}"
