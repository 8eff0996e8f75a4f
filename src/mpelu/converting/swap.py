"""convert: MPELU in the place of a model's activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from mpelu.converting.checks import (
    check_model,
    check_options,
    check_paths,
    is_skipped,
    nothing_to_swap,
)
from mpelu.converting.observe import Observation, observe, observe_symbolically
from mpelu.converting.places import Place, Replacement, build, dim_of, find_places, take_over
from mpelu.converting.recognize import LEAKY_BETA, Start, is_among, start_of
from mpelu.converting.report import Conversion, ConvertedActivation
from mpelu.converting.rewrite import rewrite_functions
from mpelu.graph import Inputs, arguments, snapshot, substitute, tensors_in, unchanged
from mpelu.init.model import check_inputs, input_error
from mpelu.modules import MPELU


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
        rewrite: also swap calls of functions, such as F.relu, torch.relu or x.relu(). The modules
            that make them are traced by torch.fx and replaced; use the `model` of the result.
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
        check_inputs("convert", example_inputs)
    elif rewrite:
        raise ValueError("convert: expected example_inputs with rewrite=True, got None")
    skipped = [skip] if isinstance(skip, str) else list(skip or ())
    restore = snapshot(list(model.modules()), values=False)
    try:
        before = _outputs(model, example_inputs) if keep_function else []
        if rewrite and example_inputs is not None:
            model = _rewritten(model, example_inputs, replace, skipped)
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
        rows = _swap(model, example_inputs, places, starts, shared, dim)
        rows += _functions_left(model, example_inputs, rewrite)
        if not any(row.is_swapped for row in rows):
            raise ValueError(nothing_to_swap(model, rows))
        after = _outputs(model, example_inputs) if keep_function else []
    except BaseException:
        restore()
        raise
    return Conversion(model=model, rows=tuple(rows), difference=_difference(before, after))


def _rewritten(
    model: nn.Module,
    inputs: Inputs,
    replace: Sequence[type[nn.Module]] | None,
    skipped: Sequence[str],
) -> nn.Module:
    """The model with modules for the functions it calls, as far as torch.fx traces what does."""
    found = _observed(model, inputs)
    assert found is not None
    return rewrite_functions(
        model,
        inputs,
        [
            each.owner
            for each in found.functions
            if not is_skipped(each.path, skipped) and is_among(each.record, replace)
        ],
    )


def _swap(
    model: nn.Module,
    inputs: Inputs | None,
    places: Sequence[Place],
    starts: Sequence[Start | str],
    shared: bool,
    dim: int | Mapping[str, int] | None,
) -> list[ConvertedActivation]:
    """Puts MPELUs where there is a start, and everything else back."""
    modules = [place.module for place in places]
    found = _observed(model, inputs, modules)
    made: dict[int, Replacement] = {}
    rows = []
    for place, start in zip(places, starts, strict=True):
        key = id(place.module)
        if isinstance(start, str):
            made[key] = Replacement(note=start)
        elif key not in made:  # parameters in several places, such as PReLU's, stay shared
            sites = None if found is None else found.sites.get(key, [])
            made[key] = build(place, start, sites, shared=shared, dim=dim_of(place.path, dim))
        new, error = made[key], None
        if new.module is None or isinstance(start, str):
            place.put_back()
        else:
            take_over(new.module, place.module)
            place.put(new.module)
            if start.slope:
                new.module.__dict__["keeps_slopes"] = True  # for load_state_dict
            dtype = next(new.module.parameters()).dtype
            error = start.error_at(None if found is None else found.lowest.get(key), dtype)
        rows.append(
            ConvertedActivation(
                path=place.path,
                was=place.was,
                is_swapped=new.module is not None,
                channels=new.channels,
                dim=new.dim,
                source=new.source,
                error=error,
                note=new.note,
            )
        )
    if found is not None and inputs is not None:
        _overwrite_where_needed(model, inputs, modules, made, found)
    return rows


def _overwrite_where_needed(
    model: nn.Module,
    inputs: Inputs,
    modules: Sequence[nn.Module],
    made: Mapping[int, Replacement],
    before: Observation,
) -> None:
    """Has an MPELU overwrite its input where the model counts on it.

    A model may call `self.relu(x)`, with a ReLU in place, and go on with x. Nothing takes the
    output of the MPELU then, while that of the ReLU was taken.
    """
    swapped = {
        key: [each for each in new.module.modules() if type(each) is MPELU]
        for key, new in made.items()
        if new.module is not None
    }
    after = _observed(model, inputs, [each for parts in swapped.values() for each in parts])
    assert after is not None
    for module in modules:
        if not getattr(module, "inplace", False):
            continue
        was_used = any(site.is_used for site in before.sites.get(id(module), ()))
        for part in swapped.get(id(module), ()):
            sites = after.sites.get(id(part), ())
            if was_used and sites and not any(site.is_used for site in sites):
                part.inplace = True


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
    model: nn.Module, inputs: Inputs | None, was_rewritten: bool
) -> list[ConvertedActivation]:
    found = None if inputs is None else _observed(model, inputs)
    hint = "torch.fx can't trace its module" if was_rewritten else "rewrite=True swaps it"
    return [
        ConvertedActivation(
            path=each.path,
            was=f"function {each.name}",
            is_swapped=False,
            note=f"called at {each.place}; {hint}",
        )
        for each in (() if found is None else found.functions)
    ]


def _outputs(model: nn.Module, inputs: Inputs | None) -> list[Tensor]:
    """What the model returns in evaluation, as far as it is real numbers."""
    if inputs is None:
        return []
    args, kwargs = substitute(arguments(inputs), Tensor, torch.clone)
    modules = list(model.modules())
    try:
        with unchanged(modules), torch.no_grad():
            found = tensors_in(model.eval()(*args, **kwargs))
    except Exception as error:  # whatever the model's code raises
        raise input_error("convert", inputs, error) from error
    return [tensor.clone() for tensor in found if tensor.is_floating_point()]


def _difference(before: Sequence[Tensor], after: Sequence[Tensor]) -> float | None:
    """The largest difference, divided by the largest output."""
    if not before:
        return None
    largest = max(each.abs().max().item() for each in before if each.numel())
    pairs = zip(before, after, strict=True)
    off = max((one - other).abs().max().item() for one, other in pairs if one.numel())
    return off / largest if largest else off
