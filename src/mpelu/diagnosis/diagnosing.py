"""Diagnoses a model in five steps: copy, measure, judge, try initializations, report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from mpelu.converting import convert
from mpelu.diagnosis.findings import class_name, findings_about, findings_of, worst_first
from mpelu.diagnosis.measure import Batch, DiagnosisError, Loss, Measurement, measure
from mpelu.diagnosis.report import CURABLE, Diagnosis, Trial, gradient_ratio, sentence_of
from mpelu.graph import Inputs, check_inputs, check_model, copied, input_error, reason, unwrap
from mpelu.init import METHODS, initialize_
from mpelu.modules import MPELU


def diagnose(
    model: nn.Module,
    inputs: Inputs,
    targets: Tensor | None = None,
    loss: Loss | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    progress: Callable[[str], None] | None = None,
) -> Diagnosis:
    """Says why a network doesn't train, from one batch.

    Measures signal, gradient and units layer by layer, finds the first layer where the signal dies
    or explodes, and tries each initialization on a copy if other weights may help. The model and
    torch's random state don't change. Trained batch norm uses the statistics of the batch; dropout
    is off.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        inputs: batch of different samples, at least 16 where possible, as one tensor, a
            tuple of positional arguments or a dict of keyword arguments.
        targets: targets of the loss. Integer targets use cross entropy; floating-point targets use
            the mean squared error.
        loss: function from the model's output, and the targets if given, to a scalar. Without
            targets and loss, a random direction of the output stands in for the loss.
        optimizer: optimizer of the model. With it, parameters are found that it doesn't train,
            hardly moves, or shrinks by decoupled weight decay.
        progress: function that receives a line before each step that may take long.

    Returns:
        A record of plain numbers. Its `sentence` names the worst problem.

    Raises:
        ValueError: if the model can't run on the inputs, the samples are all the same, or no layer
            of the model can be watched.

    Example:
        >>> layers = [nn.Linear(64, 64) if i % 2 == 0 else nn.Sigmoid() for i in range(40)]
        >>> found = mpelu.diagnose(nn.Sequential(*layers), torch.randn(32, 64))
        >>> found.findings[0].kind
        'signal dies'
    """
    model = unwrap(model)
    check_model("diagnose", model, None)
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise TypeError(
            f"diagnose: expected an optimizer with parameter groups, got {optimizer!r}; pass the "
            "object, such as SGD(model.parameters(), lr=0.1)"
        )
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise TypeError(
            f"diagnose: expected a loss to call with outputs and targets, got {loss!r}; pass an "
            "object such as nn.CrossEntropyLoss()"
        )
    check_inputs("diagnose", inputs)
    gpus = sorted({each.get_device() for each in model.parameters() if each.is_cuda})
    is_trained = any(each.requires_grad for each in model.parameters())
    batch = Batch(inputs, targets, loss)
    if batch.size < 2:  # the signal is what differs between samples
        raise ValueError("diagnose: expected at least two samples, got one")
    say = progress or (lambda text: None)
    with torch.random.fork_rng(devices=gpus):
        try:
            probe = copied(model)
            for each in () if is_trained else probe.parameters():
                each.requires_grad_(each.is_floating_point())
        except Exception as error:
            raise ValueError(
                f"diagnose: expected a model that can be copied, got: {reason(error)}"
            ) from error
        say("measuring the model")
        try:
            measured = measure(probe, batch)
        except DiagnosisError:
            raise
        except Exception as error:
            raise input_error("diagnose", inputs, error) from error
        if not measured.layers:
            raise ValueError(
                "diagnose: expected a layer with a weight that can be watched, got none in "
                f"{class_name(model)}"
            )
        if batch.scale.signal == 0:
            raise ValueError("diagnose: expected samples that differ, got the same ones")
        about = findings_about(model, measured, optimizer, batch.has_loss)
        findings = worst_first([*findings_of(measured), *about])
        trials: list[Trial] = []
        if findings and findings[0].kind in CURABLE:
            tried = model if is_trained else probe
            trials += _trials_of(tried, measured, batch, say)
    rows = tuple(measured.rows.values())
    return Diagnosis(
        sentence=sentence_of(rows, findings, trials),
        findings=tuple(findings),
        rows=rows,
        trials=tuple(trials),
        loss=measured.loss if batch.has_loss else None,
    )


def _trials_of(
    model: nn.Module,
    measured: Measurement,
    batch: Batch,
    say: Callable[[str], None],
) -> Iterator[Trial]:
    """Tries every initialization, and then MPELU in place of the activations if none helps.

    Args:
        model: model to copy for each trial.
        measured: measurement of the model with its own weights.
        batch: inputs, targets and loss.
        say: function that receives a line before each trial.
    """
    helps = False
    for method in [name for name, kind in METHODS.items() if kind.is_remedy]:
        say(f"trying initialization {method}")
        trial = _trial(model, method, batch)
        helps = helps or not trial.problem
        yield trial
    # Gates, and activations behind the last layer, stay.
    modules = dict(model.named_modules())
    last = max((row.position for row in measured.layers), default=0)
    swap = {
        row.name: row.type
        for row in measured.rows.values()
        if row.kind == "activation"
        and row.position < last
        and not row.is_gate
        and row.name in modules
        and not isinstance(modules[row.name], MPELU)
    }
    if swap and not helps:
        say("trying MPELU in place of the activations")
        yield _trial(model, "exact", batch, swap)


def _trial(
    model: nn.Module, method: str, batch: Batch, swap: Mapping[str, str] | None = None
) -> Trial:
    """Measures the effect of an initialization on a copy of a model.

    Args:
        model: model to copy.
        method: initialization to try.
        batch: inputs, targets and loss.
        swap: paths and classes of the activations that MPELU replaces.
    """
    tried = copied(model)
    generator = torch.Generator(next(model.parameters()).device).manual_seed(0)
    swapped = tuple(dict.fromkeys((swap or {}).values()))
    try:
        if swap:
            for path in swap:  # activations of any kind become one that convert knows
                tried.set_submodule(path, nn.ELU())
            kept = [
                path
                for path, _ in tried.named_modules()
                if path and not any(f"{each}.".startswith(f"{path}.") for each in swap)
            ]
            tried = convert(tried, batch.inputs, skip=kept).model
        report = initialize_(tried, batch.inputs, method=method, generator=generator)
        measured = measure(tried, batch)
    except Exception as error:  # the model itself may raise anything on other weights
        return Trial(method=method, swapped=swapped, problem=reason(error))
    found = [each for each in findings_of(measured) if each.kind in CURABLE]
    predicted = [row.predicted for row in report.rows if row.predicted is not None]
    return Trial(
        method=method,
        swapped=swapped,
        predicted=predicted[-1] if predicted else None,
        signal=measured.layers[-1].signal if measured.layers else None,
        gradient_ratio=gradient_ratio([*measured.rows.values()]),
        problem=found[0].kind if found else "",
    )
