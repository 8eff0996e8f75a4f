"""AnyInit and TAT in the study of depth, with the same budget, learning rates and seeds.

    PYTHONPATH=benchmarks:research mpelu reproduce depth_rivals:study --data-dir DATA

AnyInit isn't a dependency: `pip install anyinit==0.4.0`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

import tailoring
from mpelu.lab.studies.evidence import depth
from mpelu.lab.studies.study import Setting, Study


def anyinit_(model: nn.Module, generator: torch.Generator) -> None:
    """Its analytic mode, on images of the study's size."""
    import anyinit

    seed = int(torch.randint(2**31, (), generator=generator))
    anyinit.initialize(model, "analytic", torch.zeros(2, 3, 16, 16), seed=seed)


def tat_(model: nn.Module, generator: torch.Generator) -> None:
    """Tailored Activation Transformation."""
    tailoring.initialize_(model, input_shape=(3, 16, 16), generator=generator)


RIVALS = {"AnyInit": "depth_rivals:anyinit_", "TAT": "depth_rivals:tat_"}


def settings(source: str) -> list[Setting]:
    return [
        Setting(
            name=f"{layers}-mpelu-{name.lower()}",
            labels=(f"{layers}", "MPELU", name),
            paper="",
            config=replace(depth.base(), model=f"plain-{layers}", activation="mpelu", init=init),
        )
        for layers in depth.RULED
        for name, init in RIVALS.items()
    ]


def study() -> Study:
    """The study, with the settings of the rivals alone."""
    return replace(depth.STUDY, name="depth-rivals", settings=settings)
