"""convert: swaps a model's activations for MPELU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpelu.converting.conversion import Conversion, ConvertedActivation
from mpelu.converting.observe import FunctionCall, observe, outputs
from mpelu.converting.places import check_paths, find_places, is_skipped, swap_all
from mpelu.converting.recognize import Start, start_of
from mpelu.converting.rewrite import Rewriting, rewrite_functions, set_class
from mpelu.graph import Inputs, check_inputs, snapshot, unwrap
from mpelu.kernels.eager import PAPER, SLOPE
from mpelu.modules import MIN_BETA, MPELU


def convert(
    model: nn.Module,
    inputs: Inputs | None = None,
    *,
    replace: Sequence[type[nn.Module]] | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    slope: float | None = None,
    rate: float | None = None,
    keep_function: bool = False,
    skip: str | Sequence[str] | None = None,
    shared: bool = False,
    rewrite: bool = False,
    dim: int | Mapping[str, int] | None = None,
) -> Conversion:
    """Swaps a model's activations for channel-wise MPELU, in place.

    The number and the dimension of the channels come from a forward pass on the inputs. If
    an error is raised, the model is unchanged.

    Args:
        model: any network that isn't compiled, scripted or wrapped for several processes yet.
        inputs: one tensor, a tuple of positional arguments or a dict of keyword arguments.
            Without them, the MPELUs take their channels from a state_dict or from the first batch.
        replace: classes to replace, such as (nn.ReLU, nn.SiLU). Modules of other classes and
            functions in attributes are replaced too if they compute the same. Default: all
            activations of `mpelu.activations.TABLE` except MPELU.
        alpha: initial alpha. Default: 1.
        beta: initial beta. Default: 1.
        slope: initial slope, for MPELUs with slope and rate in place of alpha and beta.
        rate: initial rate, likewise.
        keep_function: start from the function of each activation: leaky ReLU, PReLU, ELU and CELU
            exactly, ReLU with alpha 1e-6. Those that were leaky ReLU or PReLU have slope and rate.
            Activations that no MPELU equals are left.
        skip: paths of modules to leave, with everything in them. Patterns such as "layer4.*" match
            as they do for file names.
        shared: use one alpha and beta for all channels.
        rewrite: also swap calls of functions, such as F.relu, torch.relu or x.relu(). The methods
            that make them are traced by torch.fx and get new code. The model stays the same object
            and keeps its other methods; its class then inherits from the one it had.
        dim: dimension of the channels, for all activations or by path. Default: as observed.

    Returns:
        The model, and a row for each activation that says what it became or why it was left.

    Raises:
        ValueError: in one line, if there is nothing to swap or an argument doesn't fit.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.SiLU())
        >>> report = mpelu.convert(model, torch.randn(2, 3, 8, 8))
        >>> model[1]
        MPELU(num_parameters=16, alpha=1, beta=1)
        >>> [row.channels for row in report.rows]
        [(16,), (8,)]
    """
    _check_model(model, inputs)
    given = _start({"alpha": alpha, "beta": beta, "slope": slope, "rate": rate}, keep_function)
    _check_options(replace, dim)
    if rewrite and inputs is None:
        raise ValueError("convert: rewrite=True requires inputs")
    skipped = [skip] if isinstance(skip, str) else list(skip or ())
    with _unchanged_on_error(model):
        before: list[Tensor] = []
        if keep_function and inputs is not None:
            before = outputs(model, inputs)
        rewriting = Rewriting()
        if rewrite and inputs is not None:
            rewriting = rewrite_functions(model, inputs, replace, skipped)
        places = find_places(model, replace)
        check_paths(model, places, skipped, dim)
        for place in places:
            if is_skipped(place.path, skipped):
                place.start = "skipped"
            else:
                place.start = start_of(place.kind) if keep_function else given
        left = {id(place.module) for place in places if isinstance(place.start, str)}
        observed = observe(model, inputs, [place.module for place in places], left)
        rows = swap_all(places, observed.modules, shared, dim, rewriting.notes)
        functions = observed.functions
        if any(place.is_function_again for place in places) and inputs is not None:
            functions = observe(model, inputs).functions  # with those put back
        rows += _functions_left(model, functions, rewriting if rewrite else None)
        if not any(row.is_swapped for row in rows):
            raise ValueError(_nothing_to_swap(model, rows))
        difference = None
        if keep_function and inputs is not None:
            difference = _difference(before, outputs(model, inputs))
    return Conversion(
        model=model,
        rows=tuple(rows),
        difference=difference,
        rewritten=tuple(dict.fromkeys(rewriting.classes)),
    )


@contextlib.contextmanager
def _unchanged_on_error(model: nn.Module) -> Iterator[None]:
    """Restores the modules and their classes if the block raises. No values are written in it."""
    restore = snapshot(list(model.modules()), values=False)
    classes = [(module, type(module)) for module in model.modules()]
    try:
        yield
    except BaseException:
        restore()
        for module, kind in classes:
            if type(module) is not kind:
                set_class(module, kind)
        raise


def _functions_left(
    model: nn.Module, functions: Sequence[FunctionCall], rewriting: Rewriting | None
) -> list[ConvertedActivation]:
    """Rows for the calls of functions that aren't swapped."""
    rows = []
    remaining = set(model.modules())  # activations that call a function may have been swapped
    for each in functions:
        if each.owner not in remaining:
            continue
        hint = "rewrite=True swaps it"
        if rewriting is not None:
            key = id(each.owner), each.method
            hint = rewriting.left.get(key, "rewrite=True doesn't swap it")
        rows.append(
            ConvertedActivation(
                path=each.path,
                was=f"function {each.name}",
                is_swapped=False,
                note=f"called at {each.place}; {each.stays or hint}",
            )
        )
    return rows


def _difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """The largest difference of two lists of outputs, divided by the largest output."""
    finite = [each[each.isfinite()] for each in before]
    largest = max((each.abs().max().item() for each in finite if each.numel()), default=0.0)
    pairs = [(a, b) for a, b in zip(before, after, strict=True) if a.numel()]
    off = max((_distance(one, other).max().item() for one, other in pairs), default=0.0)
    return off / largest if largest else off


def _distance(one: Tensor, other: Tensor) -> Tensor:
    """Zero where both are the same infinity or NaN."""
    is_same = (one == other) | (one.isnan() & other.isnan())
    return torch.where(is_same, 0.0, (one - other).abs())


# --- What convert refuses -----------------------------------------------------------------------


def _check_model(model: Any, inputs: Inputs | None) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"convert: expected a torch.nn.Module, got {type(model).__name__}")
    name = type(model).__name__
    if isinstance(model, torch.jit.ScriptModule):
        raise ValueError(
            f"convert: expected a model of Python code, got {name}; convert it before scripting"
        )
    if unwrap(model) is not model:
        raise ValueError(
            f"convert: expected a model that isn't wrapped, got {name}; convert it first"
        )
    for path, module in model.named_modules():
        kind = type(module)
        is_state = {
            ("sharded", "fully_shard"): any("fsdp" in base.__module__ for base in kind.__mro__),
            ("compiled", "torch.compile"): module._compiled_call_impl is not None
            or hasattr(module, "_orig_mod"),
            ("quantized", "quantization"): kind.__module__.startswith(_QUANTIZED),
        }
        for (state, step), is_so in is_state.items():
            if is_so:
                raise ValueError(
                    f"convert: expected a model that isn't {state}, got a {state} {kind.__name__} "
                    f"at {path or 'the top'}; convert it before {step}"
                )
        if any(is_lazy(each) for each in module.parameters(recurse=False)):
            raise ValueError(
                f"convert: expected weights with a shape, got a lazy {kind.__name__} at {path}; "
                "run a batch first"
            )
    if inputs is not None:
        check_inputs("convert", inputs)
        meta = next((name for name, each in model.named_parameters() if each.is_meta), None)
        if meta is not None:
            raise ValueError(
                f"convert: expected weights with memory, got {meta} on meta; leave inputs "
                "out, or load the weights first"
            )


_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")


def _start(values: Mapping[str, float | None], keep_function: bool) -> Start:
    """The parameters that were given, checked, with 1 for what wasn't."""
    given = {name: float(value) for name, value in values.items() if value is not None}
    for name, value in given.items():
        if keep_function:
            raise ValueError(
                f"convert: keep_function=True sets {name} and requires None, got {value:g}"
            )
        least = {"beta": MIN_BETA, "rate": 0.0}.get(name)
        if not math.isfinite(value):
            raise ValueError(f"convert: expected finite {name}, got {value}")
        if least is not None and value < least:
            raise ValueError(f"convert: expected {name} >= {least:g}, got {value:g}")
    names = SLOPE if given.keys() & set(SLOPE) else PAPER
    if given.keys() - set(names):
        raise ValueError("convert: expected either alpha and beta or slope and rate, got both")
    return Start({name: given.get(name, 1.0) for name in names})


def _check_options(replace: Any, dim: int | Mapping[str, int] | None) -> None:
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
    for value in dim.values() if isinstance(dim, Mapping) else [dim]:
        if value is not None and not isinstance(value, int):
            raise TypeError(f"convert: expected dim as an integer, got {value!r}")


def _nothing_to_swap(model: nn.Module, rows: Sequence[ConvertedActivation]) -> str:
    """The error that says so, and what the model has instead."""
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
