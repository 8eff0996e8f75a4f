"""convert: MPELU in the place of a model's activations."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from mpelu.converting.checks import (
    check_memory,
    check_model,
    check_options,
    check_paths,
    is_skipped,
    nothing_to_swap,
)
from mpelu.converting.observe import Observation, observe, observe_symbolically
from mpelu.converting.places import find_places
from mpelu.converting.putting import (
    overwrite_where_needed,
    put,
    rehearsal,
    replacements,
    unexplained,
)
from mpelu.converting.recognize import LEAKY_BETA, Start, is_among, start_of
from mpelu.converting.report import Conversion, ConvertedActivation
from mpelu.converting.rewrite import Rewriting, rewrite_functions, set_class
from mpelu.converting.trials import difference, is_off, outputs
from mpelu.graph import Inputs, check_inputs, input_error, snapshot


def convert(
    model: nn.Module,
    example_inputs: Inputs | None = None,
    *,
    replace: Sequence[type[nn.Module]] | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    keep_function: bool = False,
    skip: str | Sequence[str] | None = None,
    shared: bool = False,
    rewrite: bool = False,
    dim: int | Mapping[str, int] | None = None,
) -> Conversion:
    """Swaps a model's activations for channel-wise MPELU, in place.

    Number and dimension of the channels come from a forward pass on the example inputs. An error
    leaves the model as it was.

    Args:
        model: any network, before it is compiled, scripted or wrapped for several processes.
        example_inputs: one tensor, a tuple of positional or a dict of keyword arguments. Without
            them the MPELUs take their channels from a state_dict or from the first batch.
        replace: classes to replace, such as (nn.ReLU, nn.SiLU); also modules of other classes and
            functions in attributes that compute the same. Default: all activations that
            `mpelu.activations.TABLE` has but MPELU itself.
        alpha: initial value (default: 1).
        beta: initial value (default: 1). With keep_function, that of MPELUs that start as leaky
            ReLU or PReLU (default: 0.01).
        keep_function: start from the function that was there: ELU and CELU exactly, ReLU with
            alpha 1e-6, leaky ReLU and PReLU with a small beta. Activations that no MPELU equals
            are left.
        skip: paths of modules to leave, with everything in them; "layer4.*" and the like match as
            file names do.
        shared: one alpha and beta for all channels.
        rewrite: also swap calls of functions, such as F.relu, torch.relu or x.relu(). The methods
            that make them are traced by torch.fx and get new code. The model stays the same object
            and keeps its other methods; its class then inherits from the one it had.
        dim: dimension of the channels, for all or by path, in place of what was found.

    Returns:
        The model and a row for each activation: what it became, or why it was left.

    Raises:
        ValueError: in one line, if there is nothing to swap, or an argument doesn't fit.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 8, 3), nn.SiLU())
        >>> report = mpelu.convert(model, torch.randn(2, 3, 8, 8))
        >>> model[1]
        MPELU(num_parameters=16, alpha=1, beta=1)
        >>> [row.channels for row in report.rows]
        [(16,), (8,)]
    """
    check_model("convert", model)
    check_options(replace, alpha, beta, keep_function, dim)
    if example_inputs is not None:
        check_memory("convert", model)
        check_inputs("convert", example_inputs)
    elif rewrite:
        raise ValueError("convert: expected example_inputs with rewrite=True, got None")
    skipped = [skip] if isinstance(skip, str) else list(skip or ())
    restore = snapshot(list(model.modules()), values=False)
    classes = [(module, type(module)) for module in model.modules()]
    random_state = random.getstate()
    try:
        before = _outputs(model, example_inputs) if keep_function else None
        rewriting = Rewriting()
        if rewrite and example_inputs is not None:
            rewriting = _rewritten(model, example_inputs, replace, skipped)
        places = list(find_places(model, replace))
        check_paths(skipped, dim, model, [place.path for place in places])
        starts = [
            "skipped"
            if is_skipped(place.path, skipped)
            else start_of(place.kind, LEAKY_BETA if beta is None else beta)
            if keep_function
            else Start(1.0 if alpha is None else float(alpha), 1.0 if beta is None else float(beta))
            for place in places
        ]
        found = _observed(model, example_inputs, [place.module for place in places])
        made = replacements(places, starts, found, shared, dim)
        rehearsed, was_off = None, False
        has_functions = any(not isinstance(place.original, nn.Module) for place in places)
        if found is not None and example_inputs is not None:
            overwrite_where_needed(model, example_inputs, places, made, found)
            if before is not None:
                rehearsed = rehearsal(model, example_inputs, places, made)
                if rewrite or has_functions:  # the model isn't what it was before
                    was_off = is_off(before, _outputs(model, example_inputs) or [])
        rows = put(places, starts, made, found, rehearsed, rewriting)
        if has_functions and example_inputs is not None:  # which may be called again now
            found = _observed(model, example_inputs)
        rows += _functions_left(model, found, rewriting if rewrite else None)
        if not any(row.is_swapped for row in rows):
            raise ValueError(nothing_to_swap(model, rows))
        off = None
        if before is not None and rehearsed is not None:
            after = _outputs(model, example_inputs) or []
            off = difference(before, after)
            if was_off or is_off(rehearsed.outputs, after):
                rows = [unexplained(row, off) for row in rows]
    except BaseException:
        restore()
        for module, kind in classes:
            if type(module) is not kind:
                set_class(module, kind)
        raise
    finally:
        random.setstate(random_state)
    return Conversion(
        model=model,
        rows=tuple(rows),
        difference=off,
        rewritten=tuple(dict.fromkeys(rewriting.classes)),
    )


def _rewritten(
    model: nn.Module,
    inputs: Inputs,
    replace: Sequence[type[nn.Module]] | None,
    skipped: Sequence[str],
) -> Rewriting:
    """Has the model call modules in place of functions where torch.fx can trace the caller.

    Functions in attributes are modules already by then, unless they are called with more than their
    input.
    """
    places = list(find_places(model, replace))
    found = _observed(model, inputs, [place.module for place in places])
    assert found is not None
    if found.with_more:
        for place in places:
            if id(place.module) in found.with_more:
                place.put_back()
        found = _observed(model, inputs)
        assert found is not None
    rewriting = rewrite_functions(
        model,
        inputs,
        [
            each
            for each in found.functions
            if not each.stays
            and not is_skipped(each.path, skipped)
            and is_among(each.record, replace)
        ],
    )
    for place in places:
        place.put_back()
    return rewriting


def _observed(
    model: nn.Module, inputs: Inputs | None, activations: Sequence[nn.Module] = ()
) -> Observation | None:
    """What a forward pass shows; without inputs what torch.fx does, which may be nothing."""
    if inputs is None:
        return observe_symbolically(model, activations)
    try:
        return observe(model, inputs, activations)
    except Exception as error:  # whatever the model's code raises
        raise input_error("convert", inputs, error) from error


def _functions_left(
    model: nn.Module, found: Observation | None, rewriting: Rewriting | None
) -> list[ConvertedActivation]:
    rows = []
    remaining = set(model.modules())  # activations that call one have been swapped
    for each in () if found is None else found.functions:
        if each.owner not in remaining:
            continue
        hint = "rewrite=True swaps it"
        if rewriting is not None:
            hint = rewriting.left.get(
                (id(each.owner), each.method), "not one that rewrite=True swaps"
            )
        if each.stays:
            hint = each.stays
        rows.append(
            ConvertedActivation(
                path=each.path,
                was=f"function {each.name}",
                is_swapped=False,
                note=f"called at {each.place}; {hint}",
            )
        )
    return rows


def _outputs(model: nn.Module, inputs: Inputs | None) -> list[Tensor] | None:
    """What the model returns; None without inputs."""
    if inputs is None:
        return None
    try:
        return outputs(model, inputs)
    except Exception as error:  # whatever the model's code raises
        raise input_error("convert", inputs, error) from error
