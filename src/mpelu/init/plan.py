"""The plan for one weight, and the notes it may have."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpelu.elementwise import Value
from mpelu.graph import Key
from mpelu.init.signal import Note, Source

LARGEST = 10.0
"""Variance above which first-order rules give way to the exact one, if shapes are known; also the
largest factor, either way, by which gradients are balanced."""

OFF = 2.0
"""Factor by which two variances that should agree may differ before the row gets a note."""

SCALELESS = 1e12
"""Factor from one, either way, beyond which a doubtful mean square isn't believed."""

HUGE = 1e37
"""First-order rules, which don't read it, let a second moment grow as far as this."""

NOISE_NOTE = Note("its parametrization can't take random values of mean zero; left unchanged")
REUSED_NOTE = Note("at a later use its output has another variance", lasts=True)
STATE_NOTE = Note("its parametrization sets its scale; left unchanged")
SCALE_NOTE = Note(
    "the function that computes it sets its scale, which doesn't follow the rule", lasts=True
)
PART_NOTE = Note("lsuv doesn't set weights computed from a parameter; left unchanged")
FEW_NOTE = Note("measured on too few values to judge", lasts=True)
MEAN_NOTE = Note(
    "few outputs: the mean square was measured, which a few weights decide for all samples",
    lasts=True,
)
UNEVEN_NOTE = Note("its variance differs between the halves of the batch", lasts=True)
ZERO_NOTE = Note("zero before the call; stays zero (a method with keep_zeros=False sets it)")
COMPUTED_ZERO_NOTE = Note("other parameters make the weight computed from it zero; left unchanged")
ZEROS_NOTE = Note("fed by zeros; unit variance was assumed")
SCALELESS_NOTE = Note("the scale of what feeds it couldn't be predicted; unit variance was assumed")
RANGE_NOTE = Note(
    "by this rule its standard deviation would be outside the range of its type", lasts=True
)
CAPPED_NOTE = Note(
    f"by this rule its output would have a variance above {LARGEST:g}; the exact rule was used",
    lasts=True,
)


def hook_note(name: str) -> Note:
    """Returns a note about a module whose weight isn't known."""
    return Note(
        f"fed by {name}, whose weight a hook computes",
        "fed by modules whose weight a hook computes",
        lasts=True,
    )


def changed_note(name: str) -> Note:
    """Returns a note about a module whose output isn't known."""
    return Note(
        f"fed by {name}, whose output a hook may change",
        "fed by modules whose output a hook may change",
    )


@dataclass(kw_only=True, slots=True)
class Plan:
    """What to do with one weight. Never changed; not frozen, since that doubles its cost."""

    name: str
    """Path of the parameter."""
    key: Key
    index: int
    """Index of the first call that uses it."""
    weight: Tensor
    """Tensor that the layer takes: the parameter, a view of it, or one computed from it."""
    bias: Tensor | None
    is_trained: bool
    sources: tuple[Source, ...]
    """Sources of what feeds the layer."""
    fan: float | None
    """n of the rule."""
    std: Value
    """Standard deviation: one number, or one for each group of the layer."""
    bias_std: float = 0.0
    """Standard deviation of the layer's biases."""
    predicted: float | None = None
    """Variance of the layer's output; None if it can't be observed."""
    doubts: tuple[Note, ...] = ()
    widest: Tensor | None = None
    """Of the uses that share elements, the one that takes the most; None for `weight`."""
    ends_in_norm: bool = False
    """Whether everything the weight computes goes to norms, so that its scale doesn't change the
    signal."""
    is_computed: bool = False
    """Whether the weight is computed from the parameter."""
    is_fixed: bool = False
    """Whether the parameter isn't scaled, because the weight is standardized or left unchanged."""
    is_inverted: bool = False
    """Whether the inverse of a parametrization yields the parameters from the weight."""
    left: Note | None = None
    """Reason why the parameter is left unchanged; None if it is set."""
    groups: int = 1
    is_delta: bool = False
    """Whether an orthogonal weight has its matrix at the center of the kernel."""
    reached: float = 1.0
    """Share of the layer's inputs that are not padding."""
