"""The diagnosis of a model: one sentence, the rows behind it, and what initializations would do."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mpelu.converting import convert
from mpelu.diagnosis.findings import Finding, findings_of, number
from mpelu.diagnosis.measure import DiagnosedLayer, Loss, Measurement, measure
from mpelu.diagnosis.parameters import stuck_parameters
from mpelu.graph import Inputs, unwrap
from mpelu.init.initialize import initialize_
from mpelu.init.model import check_inputs, check_model, input_error, reason
from mpelu.modules import MPELU

METHODS = ("exact", "taylor", "msra", "xavier", "lsuv")
"""Initializations that are tried, the first that helps being named."""
_OPENED_STD = 0.02
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """What an initialization gives, measured on a copy of the model."""

    method: str
    predicted: float | None = None
    """Variance of the last layer's output by propagation of moments."""
    signal: float | None = None
    """Variance of the last layer's output between samples, measured."""
    gradient_ratio: float | None = None
    """What a relative change of the first weights does to the loss, as a multiple of the last."""
    problem: str = ""
    """What would still be wrong, or why it can't be applied; empty if nothing."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What was found; print it for the sentence and the table.

    Example:
        >>> model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 2))
        >>> mpelu.diagnose(model, torch.randn(32, 8)).is_healthy
        True
    """

    sentence: str
    """The worst that was found, or that all is well, with the figures."""
    findings: tuple[Finding, ...]
    """Problems first, then remarks."""
    rows: tuple[DiagnosedLayer, ...]
    """In the order of the forward pass."""
    trials: tuple[Trial, ...]
    loss: float | None
    """None without targets and loss."""

    @property
    def is_healthy(self) -> bool:
        """Whether no problem was found; remarks don't count."""
        return not any(finding.is_problem for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """As plain numbers, strings and lists."""
        return {
            "sentence": self.sentence,
            "healthy": self.is_healthy,
            "loss": self.loss,
            "findings": [
                {**asdict(finding), "problem": finding.is_problem} for finding in self.findings
            ],
            "rows": [asdict(row) for row in self.rows],
            "trials": [asdict(trial) for trial in self.trials],
        }

    def __str__(self) -> str:
        lines = [self.sentence, *(f"- {each.text}" for each in self.findings[1:]), ""]
        header = ("layer", "name", "type", "mean", "variance", "predicted", "signal", "gradient")
        cells = [
            (
                str(row.position),
                row.name,
                row.type,
                *(
                    "-" if value is None else f"{value:.3g}"
                    for value in (
                        row.mean,
                        row.variance,
                        row.predicted,
                        row.signal,
                        row.gradient,
                    )
                ),
            )
            for row in self.rows
        ]
        widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
        for line in (header, *cells):
            padded = [
                cell.ljust(width) if index in (1, 2) else cell.rjust(width)
                for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
        return "\n".join(lines)


def diagnose(
    model: nn.Module,
    example_inputs: Inputs,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Says why a network doesn't train, from one batch.

    Measures signal, gradient and units layer by layer, finds where the signal dies or explodes
    first, and tries each initialization on a copy. The model is left as it was, and so is torch's
    random state. Trained batch norm uses the statistics of the batch; dropout is off.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        example_inputs: a batch of different samples, 16 or more where possible: one tensor, a tuple
            of positional or a dict of keyword arguments.
        targets: of the loss; integers for cross entropy, others for squares.
        loss: from the model's output, and the targets if given, to a scalar. Without targets and
            loss, the gradient is that of a random direction of the output.
        optimizer: to find parameters that it doesn't train, or hardly.
        progress: receives a line before each step that may take long.

    Returns:
        A record of plain numbers; `sentence` is the worst that was found.

    Raises:
        ValueError: if the model can't run on the inputs, or the samples don't differ.

    Example:
        >>> layers = [nn.Linear(64, 64) if i % 2 == 0 else nn.Sigmoid() for i in range(40)]
        >>> found = mpelu.diagnose(nn.Sequential(*layers), torch.randn(32, 64))
        >>> found.findings[0].kind
        'signal dies'
    """
    model = unwrap(model)
    check_model("diagnose", model, None)
    check_inputs("diagnose", example_inputs)
    say = progress or (lambda text: None)
    with torch.random.fork_rng(devices=_gpus(model)):
        probe = _copied(model)
        say("measuring the model")
        try:
            measured, opened = _measured(probe, example_inputs, targets, loss)
        except Exception as error:
            if str(error).startswith("diagnose:"):
                raise
            raise input_error("diagnose", example_inputs, error) from error
        if measured.input_signal == 0:
            raise ValueError("diagnose: expected samples that differ, got the same ones")
        findings = findings_of(measured)
        has_loss = targets is not None or loss is not None
        stuck = list(stuck_parameters(model, measured.parameters, optimizer, has_loss))
        findings = _in_order([*findings, *stuck])
        trials = []
        for method in METHODS:
            say(f"trying initialization {method}")
            trials.append(_trial(model, method, example_inputs, targets, loss))
        swap = _between_layers(model, measured)
        if swap and any(each.kind in _CURABLE for each in findings):
            say("trying MPELU in place of the activations")
            trials.append(_trial(model, "exact", example_inputs, targets, loss, swap))
    if opened:
        findings.append(_opened_remark(opened))
    sentence = _sentence(measured, findings, trials)
    return Diagnosis(
        sentence=sentence,
        findings=tuple(findings),
        rows=measured.rows,
        trials=tuple(trials),
        loss=measured.loss if has_loss else None,
    )


def _gpus(model: nn.Module) -> list[int]:
    return sorted({each.get_device() for each in model.parameters() if each.is_cuda})


def _copied(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"diagnose: expected a model that can be copied, got: {reason(error)}"
        ) from error


def _in_order(findings: list[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda each: not each.is_problem)


def _measured(
    probe: nn.Module, inputs: Inputs, targets: Any, loss: Loss | None
) -> tuple[Measurement, list[str]]:
    """The measurement of a copy whose zero-initialized weights have been opened.

    A head, a branch's last norm or its scale may start at zero, by design: it gets a gradient, and
    the layers before it get theirs from the second step on. Such weights get small random values
    before everything is measured.
    """
    opened: list[str] = []
    measured = measure(probe, inputs, targets, loss)
    generator = torch.Generator().manual_seed(0)
    for _ in range(_ROUNDS):
        parameters = dict(probe.named_parameters())
        closed = [
            name
            for name, gradient in measured.parameters.items()
            if gradient is not None
            and not name.endswith("bias")
            and not parameters[name].any()
            and gradient.any()
        ]
        if not closed:
            break
        opened += closed
        with torch.no_grad():
            for name in closed:
                small = torch.randn(parameters[name].shape, generator=generator) * _OPENED_STD
                parameters[name].copy_(small)
        measured = measure(probe, inputs, targets, loss)
    return measured, opened


def _opened_remark(opened: list[str]) -> Finding:
    several = len(opened) > 1
    more = f" and {len(opened) - 1} more" if several else ""
    return Finding(
        kind="remark",
        text=f"`{opened[0]}`{more} {'start' if several else 'starts'} at zero, as is common, and "
        f"{'get' if several else 'gets'} a gradient; it was measured with small values instead",
    )


def _between_layers(model: nn.Module, measured: Measurement) -> dict[str, str]:
    """Paths and classes of activations between layers that aren't MPELUs, nor gates."""
    modules = dict(model.named_modules())
    last = measured.layers[-1].position if measured.layers else 0
    return {
        row.name: row.type
        for row in measured.rows
        if row.kind == "activation"
        and row.position < last
        and row.name in modules
        and row.name not in measured.gates
        and not isinstance(modules[row.name], MPELU)
    }


def _trial(
    model: nn.Module,
    method: str,
    inputs: Inputs,
    targets: Any,
    loss: Loss | None,
    swap: Mapping[str, str] | None = None,
) -> Trial:
    """What an initialization gives on a copy, in which MPELU may take the place of activations."""
    copied = _copied(model)
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    name = method if not swap else f"{method} with MPELU for {' and '.join({*swap.values()})}"
    try:
        if swap:
            for path in swap:  # so that convert knows them, whatever they are
                copied.set_submodule(path, nn.ELU())
            others = [path for path, _ in copied.named_modules() if path and path not in swap]
            kept = [
                path for path in others if not any(each.startswith(f"{path}.") for each in swap)
            ]
            copied = convert(copied, inputs, skip=kept).model
        report = initialize_(copied, inputs, method=method, generator=generator)
        measured, _ = _measured(copied, inputs, targets, loss)
    except (ValueError, RuntimeError) as error:
        return Trial(method=name, problem=reason(error))
    found = [each for each in findings_of(measured) if each.is_problem]
    predicted = [row.predicted for row in report.rows if row.predicted is not None]
    return Trial(
        method=name,
        predicted=predicted[-1] if predicted else None,
        signal=measured.layers[-1].signal if measured.layers else None,
        gradient_ratio=gradient_ratio(measured),
        problem=found[0].kind if found else "",
    )


def gradient_ratio(measured: Measurement) -> float | None:
    """What a relative change of the first weight does to the loss, as a multiple of the last."""
    sizes = [row.weight_gradient for row in measured.layers if row.weight_gradient is not None]
    return sizes[0] / sizes[-1] if len(sizes) > 1 and sizes[-1] > 0 else None


_CURABLE = (
    "non-finite", "signal dies", "signal explodes", "gradient vanishes", "gradient explodes",
    "dead", "saturated", "linear",
)  # fmt: skip
"""Kinds of problems that other weights may solve."""


def _sentence(measured: Measurement, findings: list[Finding], trials: list[Trial]) -> str:
    problems = [each for each in findings if each.is_problem]
    if not problems:
        return _healthy(measured)
    worst = problems[0]
    if worst.kind not in _CURABLE:
        return worst.text
    cure = next((trial for trial in trials if not trial.problem), None)
    if cure is None:
        return f"{worst.text}; no initialization of {', '.join(METHODS)} would change that"
    assert cure.signal is not None
    method, _, swap = cure.method.partition(" ")
    call = f"initialize_(model, example_inputs, method='{method}')"
    if swap:
        call = f"no initialization alone would change that; {swap}, {call}"
    verb = "hold it at" if worst.kind.startswith("signal") else "give the signal a variance of"
    return f"{worst.text}; {call} would {verb} {number(cure.signal)} in the last layer"


def _healthy(measured: Measurement) -> str:
    layers = measured.layers
    signals = [row.signal for row in layers]
    ratio = gradient_ratio(measured)
    dead = [row.dead for row in measured.rows if row.dead is not None]
    parts = [
        f"healthy: the signal's variance is between {number(min(signals))} and "
        f"{number(max(signals))} over {len(layers)} layers, {number(signals[-1])} at the last "
        f"(`{layers[-1].name}`)"
    ]
    if ratio is not None:
        parts.append(f"the first weights matter {number(ratio)} times as much as the last")
    if dead:
        parts.append(f"at most {max(dead):.0%} of an activation's units are dead")
    return "; ".join(parts)
