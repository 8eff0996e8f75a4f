"""MPELUs in the places of activations: made, tried out and put there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from mpelu.converting.observe import Observation
from mpelu.converting.places import Place, Replacement, build, dim_of, take_over
from mpelu.converting.recognize import Start
from mpelu.converting.report import ConvertedActivation
from mpelu.converting.rewrite import Rewriting
from mpelu.converting.trials import Rehearsal, overwriting_needed, rehearse
from mpelu.graph import Inputs
from mpelu.modules import MPELU


def replacements(
    places: Sequence[Place],
    starts: Sequence[Start | str],
    found: Observation | None,
    shared: bool,
    dim: int | Mapping[str, int] | None,
) -> dict[int, Replacement]:
    """What takes the place of each activation, by the id of its module."""
    made: dict[int, Replacement] = {}
    for place, start in zip(places, starts, strict=True):
        key = id(place.module)
        if isinstance(start, str):
            made[key] = Replacement(note="its parameters are shared with one that is left")
        elif found is not None and key in found.with_more:
            note = "called with more than its input, which is all that an MPELU takes"
            made[key] = Replacement(note=note)
        elif found is not None and key in found.stays:
            made[key] = Replacement(note=found.stays[key])
        elif key not in made:  # parameters in several places, such as PReLU's, stay shared
            sites = None if found is None else found.sites.get(key, [])
            made[key] = build(place, start, sites, shared=shared, dim=dim_of(place.path, dim))
    return made


def overwrite_where_needed(
    model: nn.Module,
    inputs: Inputs,
    places: Sequence[Place],
    made: Mapping[int, Replacement],
    found: Observation,
) -> None:
    """Has an MPELU overwrite its input where the activation does and the model counts on it."""
    overwriting = {
        id(place.module): place.module
        for place in places
        if id(place.module) in found.overwriting and made[id(place.module)].module is not None
    }
    for key in overwriting_needed(model, inputs, list(overwriting.values())):
        for part in _mpelus(made[key]):
            part.inplace = True


def _mpelus(new: Replacement) -> list[MPELU]:
    modules = [] if new.module is None else new.module.modules()
    return [each for each in modules if isinstance(each, MPELU)]


def rehearsal(
    model: nn.Module, inputs: Inputs, places: Sequence[Place], made: Mapping[int, Replacement]
) -> Rehearsal:
    """What the model should return once its activations are swapped."""
    pairs = {
        id(place.module): (place.module, new.module)
        for place in places
        if (new := made[id(place.module)]).module is not None
    }
    return rehearse(model, inputs, list(pairs.values()))


def put(
    places: Sequence[Place],
    starts: Sequence[Start | str],
    made: Mapping[int, Replacement],
    found: Observation | None,
    rehearsed: Rehearsal | None,
    rewriting: Rewriting,
) -> list[ConvertedActivation]:
    """Puts MPELUs where there are any, and everything else back."""
    rows = []
    for place, start in zip(places, starts, strict=True):
        key = id(place.module)
        new, error = made[key], None
        notes = [start if isinstance(start, str) else new.note]
        if new.module is None or isinstance(start, str):
            place.put_back()
        else:
            take_over(new.module, place.module)
            place.put(new.module)
            if start.slope:
                new.module.__dict__["keeps_slopes"] = True  # for load_state_dict
            dtype = next(new.module.parameters()).dtype
            error = start.error_at(None if found is None else found.lowest.get(key), dtype)
            if error is not None and rehearsed is not None:
                error = max(error, rehearsed.errors.get(key, 0.0))
            notes.append(rewriting.notes.get(id(place.original), ""))
        rows.append(
            ConvertedActivation(
                path=place.path,
                was=place.was,
                is_swapped=new.module is not None,
                channels=new.channels,
                dim=new.dim,
                source=new.source,
                error=error,
                note="; ".join(note for note in notes if note),
            )
        )
    return rows


def unexplained(row: ConvertedActivation, off: float) -> ConvertedActivation:
    """The row of a model that changed by more than its activations did."""
    if not row.is_swapped:
        return row
    said = (
        f"the model's outputs differ by {off:.1e} of the largest, which isn't due to the values "
        "of its activations"
    )
    return replace(row, error=None, note="; ".join(part for part in (row.note, said) if part))
