"""The ways the operator runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from mpelu.kernels import gpu, native, registry

Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# test_triton.py starts pytest once more, with Triton's interpreter for tensors on the CPU.
INTERPRETED = registry.KERNELS.get("cpu", {}).get(torch.float32) is gpu


def needs_native() -> None:
    if native.library is None:
        pytest.skip(f"no native kernel: {native.reason}")
