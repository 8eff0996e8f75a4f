"""The diagnosis of a model: one sentence, the rows behind it, and what initializations would do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mpelu.diagnosis.findings import findings_of
from mpelu.diagnosis.inputs import DiagnosisError, Loss, batch_size
from mpelu.diagnosis.parameters import stuck_parameters
from mpelu.diagnosis.remarks import class_name, measure_opened, opened_remarks, unseen_remarks
from mpelu.diagnosis.report import Diagnosis, sentence_of
from mpelu.diagnosis.trials import CURABLE, Trial, trials_of
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

    Measures signal, gradient and units layer by layer, finds where the signal dies or explodes
    first, and tries each initialization on a copy if other weights may help. The model is left as
    it was, and so is torch's random state. Trained batch norm uses the statistics of the batch;
    dropout is off.

    Args:
        model: any network, also inside DistributedDataParallel or torch.compile.
        example_inputs: a batch of different samples, 16 or more where possible: one tensor, a tuple
            of positional or a dict of keyword arguments.
        targets: of the loss; integers for cross entropy, others for squares.
        loss: from the model's output, and the targets if given, to a scalar. Without targets and
            loss, the gradient is that of a random direction of the output.
        optimizer: to find parameters that it doesn't train, hardly moves, or shrinks by decoupled
            weight decay.
        progress: receives a line before each step that may take long.

    Returns:
        A record of plain numbers; `sentence` is the worst that was found.

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
    with torch.random.fork_rng(devices=_gpus(model)):
        probe, is_trained = _trainable(model)
        say("measuring the model")
        try:
            measured, opened = measure_opened(probe, example_inputs, targets, loss)
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
        findings = [
            *findings_of(measured),
            *stuck_parameters(model, measured, optimizer, has_loss),
            *unseen_remarks(model),
            *opened_remarks(opened),
        ]
        findings.sort(key=lambda each: not each.is_problem)
        trials: list[Trial] = []
        if findings and findings[0].kind in CURABLE:
            trials += trials_of(
                model if is_trained else probe, measured, example_inputs, targets, loss, say
            )
    return Diagnosis(
        sentence=sentence_of(measured, findings, trials),
        findings=tuple(findings),
        rows=measured.rows,
        trials=tuple(trials),
        loss=measured.loss if has_loss else None,
    )


def _gpus(model: nn.Module) -> list[int]:
    return sorted({each.get_device() for each in model.parameters() if each.is_cuda})


def _trainable(model: nn.Module) -> tuple[nn.Module, bool]:
    """A copy, of which everything is trained if nothing of the model is; and whether it was."""
    is_trained = any(each.requires_grad for each in model.parameters())
    try:
        probe = copied(model)
        for each in () if is_trained else probe.parameters():
            each.requires_grad_(each.is_floating_point())
        return probe, is_trained
    except Exception as error:
        raise ValueError(
            f"diagnose: expected a model that can be copied, got: {reason(error)}"
        ) from error
