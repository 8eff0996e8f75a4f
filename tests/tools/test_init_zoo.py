"""Architectures of other packages, where these are installed: no crash, and outputs in range."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from mpelu.graph import layer_of, record
from mpelu.init import initialize_
from mpelu.init.measure import variance_of

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
MODELS = [
    "transformers/gpt2",
    "transformers/llama",
    "transformers/t5",
    "transformers/whisper",
    "transformers/mixtral",
    "transformers/mamba",
    "timm/resnet18",
    "timm/vit_tiny_patch16_224",
    "timm/nf_resnet26",
    "torchvision/squeezenet1_1",
    "x-transformers/decoder",
    "torch/transformer",
    "torch/lstm",
]


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("zoo_models").ZOO


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_is_placed_or_named_and_the_output_is_in_range(name: str, zoo: Any) -> None:
    torch.manual_seed(0)
    try:
        model, make = zoo[name]()
    except ImportError as error:
        pytest.skip(f"{name.split('/')[0]} is not installed: {error}")
    report = initialize_(model, make(), generator=torch.Generator().manual_seed(0))
    named = {row.layer for row in report.rows}
    norms = {
        f"{path}.{parameter}"
        for path, module in model.named_modules()
        if "norm" in type(module).__name__.lower()
        for parameter, _ in module.named_parameters(recurse=False)
    }
    for path, parameter in model.named_parameters():
        assert parameter.dim() < 2 or path in named or path in norms
    assert all(row.note for row in report.rows if row.rule == "left unchanged")
    outputs: list[float] = []

    def measure(call: Any, output: torch.Tensor, _: Any) -> torch.Tensor:
        if layer_of(call) is not None:
            outputs.append(variance_of(output))
        return output

    record(model, make(), after=measure)
    assert 0.3 < outputs[-1] < 3
