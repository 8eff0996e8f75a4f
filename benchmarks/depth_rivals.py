"""AnyInit in the study of depth, with the same budget, learning rates and seeds.

    PYTHONPATH=benchmarks mpelu reproduce depth_rivals:study --data-dir DATA

AnyInit isn't a dependency: `pip install anyinit==0.4.0`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from mpelu.lab.studies.evidence import depth
from mpelu.lab.studies.study import Setting, Study


def anyinit_(model: nn.Module, generator: torch.Generator) -> None:
    """Its analytic mode, on images of the study's size."""
    import anyinit

    seed = int(torch.randint(2**31, (), generator=generator))
    anyinit.initialize(model, "analytic", torch.zeros(2, 3, 16, 16), seed=seed)


def settings(source: str) -> list[Setting]:
    return [
        Setting(
            name=f"{layers}-mpelu-anyinit",
            labels=(f"{layers}", "MPELU", "AnyInit"),
            paper="",
            config=replace(
                depth.base(),
                model=f"plain-{layers}",
                activation="mpelu",
                init="depth_rivals:anyinit_",
            ),
        )
        for layers in depth.RULED
    ]


def study() -> Study:
    """The study, with the settings of AnyInit alone."""
    return replace(depth.STUDY, name="depth-rivals", settings=settings)
