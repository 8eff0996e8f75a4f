"""Reports what an initialization did to each weight."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.elementwise import Value, average
from mpelu.graph import NORMS, Key, Weights
from mpelu.init.layers import deviation
from mpelu.init.measure import Measured
from mpelu.init.plan import OFF, ZERO_NOTE, ZEROS_NOTE, Plan
from mpelu.init.signal import Note, Source

WIDTH = 100
"""Columns of a printed report."""
MOST, FIRST, LAST = 32, 20, 6
"""Most rows that are printed in full, and how many first and last rows a longer table shows."""


@dataclass(frozen=True, kw_only=True)
class InitializedWeight:
    """One weight, and what was done to it."""

    layer: str
    """Path of the weight in the model."""
    part: str = ""
    """Part of the weight that the layer takes, such as "q", "k" or "v" of attention."""
    rule: str
    """Method and mode, followed by "balanced" if the weight was scaled by its gradient and by
    "measured" if it was scaled by measurement; otherwise "frozen" or "left unchanged"."""
    scaled: tuple[str, ...] = ()
    """Which of the words "balanced" and "measured" apply."""
    state: str = "set"
    """"set", "left" or "frozen"."""
    feed: str = ""
    """Activation that feeds the layer, or several joined by +, or "input"."""
    kinds: tuple[str, ...] = ()
    """Activations without their paths, each once."""
    alpha: float | list[float] | None = None
    """alpha of the activation: a number, or one for each channel where they differ."""
    beta: float | list[float] | None = None
    fan: float | None = None
    """n in the rule."""
    std: float
    """Standard deviation of the weights, over all groups if they differ."""
    predicted: float | None = None
    """Variance of the layer's output, as predicted by following the moments of the signal."""
    measured: float | None = None
    """Variance of the layer's output on the inputs. With one or two outputs it is the mean square,
    and so is `predicted`, since weights have mean zero."""
    gradient: float | None = None
    """Predicted variance of the gradient at the layer's output, relative to the last call's. Only
    "critical", "deep" and shapes by depth predict this and the next two."""
    chi: float | None = None
    """Factor by which the layer and the activation before it scale the gradient's variance."""
    correlation: float | None = None
    """Correlation of two unrelated inputs at the layer's output."""
    notes: tuple[Note, ...] = ()
    """Assumptions, or the reason why the weight was left unchanged."""

    @property
    def note(self) -> str:
        """Notes in one line."""
        return "; ".join(note.text for note in self.notes)

    @property
    def name(self) -> str:
        """Path, with the part if there is one."""
        return f"{self.layer} ({self.part})" if self.part else self.layer


@dataclass(frozen=True)
class Initialization:
    """Report with rows in the order of the forward pass, then for the weights that aren't in it.

    Printing it gives a summary: a note that several weights share appears once, and a long table is
    cut to its first and last rows. `details` has everything.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), mpelu.MPELU(), torch.nn.Linear(8, 2))
        >>> report = mpelu.init.initialize_(model, torch.randn(64, 8))
        >>> [row.feed for row in report.rows]
        ['input', '1 (MPELU)']
    """

    rows: tuple[InitializedWeight, ...]
    correlation: float | None = None
    """C_f(0), the largest correlation that two unrelated inputs have anywhere in the network."""
    rule: str = ""
    """Method and mode of all weights that were set."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain numbers, strings and lists."""
        rows = [{**asdict(row), "note": row.note} for row in self.rows]
        return {"rows": rows, "correlation": self.correlation, "rule": self.rule}

    def details(self) -> str:
        """Formats all rows, each followed by its notes."""
        lines = _table(self.rows) if self.rows else []
        found = [*self._summary(), *lines[:1]]
        for row, line in zip(self.rows, lines[1:], strict=True):
            found.append(line)
            for note in row.notes:
                found += textwrap.wrap(note.text, WIDTH - 4, **_INDENTED)
        return "\n".join(found)

    def __str__(self) -> str:
        # Weights outside of the forward pass have nothing to show but their notes.
        shown = [row for row in self.rows if row.state == "set" or row.predicted is not None]
        lines = _table(shown) if shown else []
        is_short = len(shown) <= MOST
        if not is_short:
            lines = [*lines[: FIRST + 1], "...", *lines[-LAST:]]
        notes = self._notes()
        is_whole = is_short and len(shown) == len(self.rows) and not notes
        more = [] if is_whole else [f"report.details() has all {len(self.rows)} rows and notes"]
        return "\n".join([*self._summary(), *lines, *notes, *more])

    def _summary(self) -> list[str]:
        done = [row for row in self.rows if row.state == "set"]
        counts = [_counted(len(done), "weight") + " set"]
        for word, said in (("measured", "scaled by measurement"), ("balanced", "by gradients")):
            count = sum(word in row.scaled for row in done)
            counts += [f"{count} {said}"] if count else []
        left = sum(row.state == "left" for row in self.rows)
        frozen = sum(row.state == "frozen" for row in self.rows)
        counts += [f"{left} left unchanged"] if left else []
        counts += [f"{frozen} frozen"] if frozen else []
        line = f"{self.rule or 'initialized'}: {', '.join(counts)}"
        if self.correlation is not None:
            line += f"; C_f(0): {self.correlation:.3g}"
        return textwrap.wrap(line, WIDTH, subsequent_indent="    ")

    def _notes(self) -> list[str]:
        """Formats each note once, with the weights that have it."""
        texts: dict[str, list[tuple[str, str]]] = {}
        for row in self.rows:
            for note in dict.fromkeys(row.notes):
                texts.setdefault(note.group or note.text, []).append((row.name, note.text))
        lines: list[str] = []
        for group, found in texts.items():
            if len(found) == 1:
                (name, text), *_ = found
                line = f"{name}: {text}"
            else:
                first, second = found[0][0], found[1][0]
                more = f", {second}" if len(found) == 2 else f" and {len(found) - 1} more"
                line = f"{len(found)} weights: {group} ({first}{more})"
            lines += textwrap.wrap(line, WIDTH, **_INDENTED_FURTHER)
        return lines


_INDENTED: Any = {
    "initial_indent": "    ", "subsequent_indent": "    ", "break_on_hyphens": False,
}  # fmt: skip
_INDENTED_FURTHER: Any = {"subsequent_indent": "    ", "break_on_hyphens": False}


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def rows_of(
    model: nn.Module,
    parameters: Mapping[str, Tensor],
    weights: Weights,
    plans: Sequence[Plan],
    rule: str,
    outcomes: Mapping[Key, Measured],
    zeros: Collection[str] = (),
) -> tuple[InitializedWeight, ...]:
    """Returns a row for each plan, and for each weight of two or more dimensions without one.

    Args:
        model: model that was initialized.
        parameters: parameters of the model, by path.
        weights: weights of the model, with the calls that used them.
        plans: plans for the weights, in order.
        rule: method and mode.
        outcomes: measurements of the weights.
        zeros: paths of weights that stayed zero.
    """
    places: dict[str, list[int]] = {}
    for plan in plans:
        places.setdefault(plan.name, []).append(plan.key[1])
    rows = [
        _row(
            plan,
            rule,
            outcomes.get(plan.key, _UNKNOWN),
            weights,
            _part(model, plan, sorted(places[plan.name])),
        )
        for plan in plans
    ]
    placed = {name for plan in plans for name in weights.originals(plan.name)}
    norms = [module for module in model.modules() if isinstance(module, NORMS)]
    reset = {id(parameter) for module in norms for parameter in module.parameters()}
    rows += [
        InitializedWeight(
            layer=name,
            rule="left unchanged" if parameter.requires_grad else "frozen",
            state="left" if parameter.requires_grad else "frozen",
            std=deviation(parameter),
            notes=(_reason_left(model, name, weights.used),) if parameter.requires_grad else (),
        )
        for name, parameter in parameters.items()
        if parameter.dim() > 1 and name not in placed and id(parameter) not in reset
    ]
    rows += [
        InitializedWeight(
            layer=name, rule="left unchanged", state="left", std=0.0, notes=(ZERO_NOTE,)
        )
        for name, parameter in parameters.items()
        if name in zeros and id(parameter) in reset and parameter.requires_grad
    ]
    return tuple(rows)


_UNKNOWN = Measured()


def _row(
    plan: Plan, rule: str, outcome: Measured, weights: Weights, part: str
) -> InitializedWeight:
    alone = plan.sources[0].activation if len(plan.sources) == 1 else None
    state = "frozen" if not plan.is_trained else "left" if plan.left is not None else "set"
    scaled = (*["balanced"] * outcome.is_balanced, *["measured"] * outcome.is_scaled)
    rules = {"frozen": "frozen", "left": "left unchanged", "set": ", ".join([rule, *scaled])}
    return InitializedWeight(
        layer=plan.name,
        part=part,
        rule=rules[state],
        scaled=scaled,
        state=state,
        feed=" + ".join(_named(plan.sources, _label)),
        kinds=_named(plan.sources, _kind),
        alpha=None if alone is None else _numbers(alone.alpha),
        beta=None if alone is None else _numbers(alone.beta),
        fan=plan.fan if plan.is_trained else None,
        std=deviation(weights.again(plan.weight)) if outcome.is_scaled else _std(plan),
        predicted=plan.predicted,
        measured=outcome.variance,
        notes=_notes(plan, outcome) if plan.is_trained else (),
    )


def _part(model: nn.Module, plan: Plan, places: Sequence[int]) -> str:
    """Names the part of its parameter that a plan is for; parts begin at these places."""
    if len(places) < 2:
        return ""
    place = places.index(plan.key[1])
    owner = model.get_submodule(plan.name.rpartition(".")[0])
    is_attention = isinstance(owner, nn.MultiheadAttention) and len(places) == 3
    return "qkv"[place] if is_attention else f"part {place + 1}"


def _std(plan: Plan) -> float:
    if plan.left or not plan.is_trained:
        return average(plan.std) if plan.left else deviation(plan.weight)
    return math.sqrt(average(plan.std**2))


def _notes(plan: Plan, outcome: Measured) -> tuple[Note, ...]:
    """Returns the notes on a weight, without the doubts that a measurement has settled."""
    if plan.left is not None:
        return (plan.left,)
    doubts = tuple(dict.fromkeys((*plan.doubts, *outcome.notes)))
    measured, predicted = outcome.variance, plan.predicted or 0.0
    if measured is None:
        return doubts
    if predicted > 0 and 1 / OFF <= measured / predicted <= OFF:
        return tuple(doubt for doubt in doubts if doubt.lasts)
    if measured == 0 and ZEROS_NOTE in doubts:
        return doubts
    off = Note(
        f"measured {measured:.3g} where {predicted:.3g} was predicted",
        f"measured off the prediction by more than a factor of {OFF:g}",
    )
    return (off, *doubts)


def _reason_left(model: nn.Module, name: str, used: Mapping[str, str]) -> Note:
    if _is_scripted(model, name):
        return Note("inside a scripted module, which can't be looked into; left unchanged")
    if not used:  # torch.fx shows which functions are called, not what computes their weights
        return Note("torch.fx shows no layer that uses it; left unchanged (inputs may reveal one)")
    if name not in used:
        return Note("not used in the forward pass; left unchanged")
    said = "but not as the weight of a layer that the input feeds; left unchanged"
    return Note(f"used by {used[name]}, {said}", f"used, {said}")


def _is_scripted(model: nn.Module, name: str) -> bool:
    """Returns whether a module on the path to a parameter is scripted."""
    parts = name.split(".")[:-1]
    paths = [".".join(parts[:count]) for count in range(len(parts) + 1)]
    return any(isinstance(model.get_submodule(path), torch.jit.ScriptModule) for path in paths)


def _label(source: Source) -> str:
    kind = source.activation.name
    return source.name if kind in ("linear", source.name) else f"{source.name} ({kind})"


def _kind(source: Source) -> str:
    kind = source.activation.name
    return source.name if kind == "linear" else kind


def _named(sources: Sequence[Source], name: Callable[[Source], str]) -> tuple[str, ...]:
    """Returns each name once; steps of a computation are named only if there is nothing else."""
    known = [name(source) for source in sources if not source.is_operation]
    steps = [name(source) for source in sources if source.is_operation]
    names = [*known, *["other"] * bool(steps)] if known else steps
    return tuple(dict.fromkeys(names))


def _numbers(value: Value | None) -> float | list[float] | None:
    return value.tolist() if isinstance(value, Tensor) else value


def _number(value: float | list[float] | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, list):
        return f"{min(value):.3g}..{max(value):.3g}"
    return f"{value:.4g}"


def _table(rows: Sequence[InitializedWeight]) -> list[str]:
    """Formats a header and a line for each row, none wider than `WIDTH`; omits empty columns."""
    columns = {
        "layer": [row.name for row in rows],
        "fed by": [_shortened(" + ".join(row.kinds) or "-", _FED) for row in rows],
        "alpha": [_number(row.alpha) for row in rows],
        "beta": [_number(row.beta) for row in rows],
        "fan": [_number(row.fan) for row in rows],
        "std": [_number(row.std) for row in rows],
        "predicted": [_number(row.predicted) for row in rows],
        "measured": [_number(row.measured) for row in rows],
        "gradient": [_number(row.gradient) for row in rows],
        "chi": [_number(row.chi) for row in rows],
        "corr": [_number(row.correlation) for row in rows],
        "set by": [_set_by(row) for row in rows],
    }
    columns = {name: cells for name, cells in columns.items() if {*cells} - {"-", "rule"}}
    widths = {name: max(map(len, [name, *cells])) for name, cells in columns.items()}
    for name in ("fan", "chi", "gradient"):
        if sum(widths.values()) + 2 * len(widths) - widths["layer"] + _PATH > WIDTH:
            widths.pop(name, None)
    room = WIDTH - sum(widths.values()) - 2 * (len(widths) - 1) + widths["layer"]
    widths["layer"] = min(widths["layer"], room)
    lines = [{name: name for name in columns}]
    lines += [
        dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)
    ]
    return [
        "  ".join(
            _shortened(line[name], width).ljust(width)
            if name in _TEXTS
            else line[name].rjust(width)
            for name, width in widths.items()
        ).rstrip()
        for line in lines
    ]


_TEXTS = ("layer", "fed by", "set by")
_FED, _PATH = 24, 24
"""Maximum width of what feeds a layer, and minimum width of its path."""


def _set_by(row: InitializedWeight) -> str:
    if row.state != "set":
        return row.state
    return ", ".join(row.scaled) or "rule"


def _shortened(text: str, width: int) -> str:
    """Cuts out the middle of a text that is too long."""
    if len(text) <= width:
        return text
    kept = width - 3
    return f"{text[: kept // 3]}...{text[len(text) - (kept - kept // 3) :]}"
