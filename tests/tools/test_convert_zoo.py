"""Models that nobody here wrote, through the stages of benchmarks/zoo_convert.py."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "benchmarks")
MODELS = ["torch/transformer", "vit-pytorch/cct", "transformers/bert", "timm/mobilenetv3_small_100"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_others_does_what_it_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    stages: Any = importlib.import_module("zoo_convert")
    try:
        stages.built(name)
    except ImportError as error:
        pytest.skip(f"{name.split('/')[0]} is not installed: {error}")
    found = {stage: stages.run_stage(name, stage, "aot_eager") for stage in stages.STAGES}
    assert all("error" not in each for each in found.values()), found
    assert found["converted"]["swapped"] > 0
    assert found["converted"]["left"] == {}
    assert 0.5 < found["initialized"]["variance"] < 2
    assert found["step"]["with_gradient"] == found["step"]["parameters"] > 0
    assert found["step"]["finite"]
    assert found["state_dict"]["difference"] == 0
    kept = found["kept"]
    assert kept["difference"] is None or kept["difference"] <= 1e-5
    for stage in ("compiled", "onnx"):
        if stage == "onnx":
            pytest.importorskip("onnxruntime")
        assert found[stage]["original"] < stages.FAR
        assert found[stage]["converted"] < stages.FAR


def test_the_table_has_thirty_architectures_of_eight_packages() -> None:
    lines = (Path(BENCHMARKS).parent / "docs" / "convert.md").read_text().splitlines()
    names = [line.split(" | ")[0].strip("| ") for line in lines if line.startswith("| ")]
    models = [name for name in names if "/" in name]
    assert len(models) >= 30
    assert len({name.split("/")[0] for name in models}) >= 8
