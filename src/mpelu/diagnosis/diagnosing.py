"""The diagnosis of a model, in the order of its steps: copy, measure, judge, try, report."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpelu.diagnosis.findings import class_name, findings_about, findings_of, worst_first
from mpelu.diagnosis.measure import DiagnosisError, Loss, batch_size, measure
from mpelu.diagnosis.report import CURABLE, Diagnosis, Trial, sentence_of
from mpelu.diagnosis.trials import trials_of
from mpelu.graph import Inputs, check_inputs, check_model, copied, input_error, reason, unwrap


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

    Measures signal, gradient and units layer by layer, finds the first layer where the signal dies
    or explodes, and tries each initialization on a copy if other weights may help. The model and
    torch's random state are unchanged. Trained batch norm uses the statistics of the batch; dropout
    is off.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        example_inputs: batch of different samples, 16 or more where possible: one tensor, a tuple
            of positional or a dict of keyword arguments.
        targets: targets of the loss. Integer targets use cross entropy; floating-point targets use
            the mean squared error.
        loss: maps the model's output, and the targets if given, to a scalar. Without targets and
            loss, the gradient is that of a random direction of the output.
        optimizer: optimizer of the model, to find parameters that it doesn't train, hardly moves,
            or shrinks by decoupled weight decay.
        progress: receives a line before each step that may take long.

    Returns:
        A record of plain numbers. Its `sentence` is the worst problem that was found.

    Raises:
        ValueError: if the model can't run on the inputs, the samples don't differ, or no layer of
            the model can be watched.

    Example:
        >>> layers = [nn.Linear(64, 64) if i % 2 == 0 else nn.Sigmoid() for i in range(40)]
        >>> found = mpelu.diagnose(nn.Sequential(*layers), torch.randn(32, 64))
        >>> found.findings[0].kind
        'signal dies'
    """
    model = unwrap(model)
    check_model("diagnose", model, None)
    check_inputs("diagnose", example_inputs)
    if batch_size(example_inputs) < 2:  # the signal is what differs between samples
        raise ValueError("diagnose: expected at least two samples, got one")
    say = progress or (lambda text: None)
    gpus = sorted({each.get_device() for each in model.parameters() if each.is_cuda})
    with torch.random.fork_rng(devices=gpus):
        is_trained = any(each.requires_grad for each in model.parameters())
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
            measured = measure(probe, example_inputs, targets, loss)
        except DiagnosisError:
            raise
        except Exception as error:
            raise input_error("diagnose", example_inputs, error) from error
        if not measured.layers:
            raise ValueError(
                "diagnose: expected a layer with a weight that can be watched, got none in "
                f"{class_name(model)}"
            )
        if measured.inputs.signal == 0:
            raise ValueError("diagnose: expected samples that differ, got the same ones")
        has_loss = targets is not None or loss is not None
        about = findings_about(model, measured, optimizer, has_loss)
        findings = worst_first([*findings_of(measured), *about])
        trials: list[Trial] = []
        if findings and findings[0].kind in CURABLE:
            tried = model if is_trained else probe
            trials += trials_of(tried, measured, example_inputs, targets, loss, say)
    rows = tuple(measured.rows.values())
    return Diagnosis(
        sentence=sentence_of(rows, findings, trials),
        findings=tuple(findings),
        rows=rows,
        trials=tuple(trials),
        loss=measured.loss if has_loss else None,
    )
