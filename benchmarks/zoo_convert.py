"""What `mpelu.convert` does to architectures nobody here wrote, and what the result can do.

    python benchmarks/zoo_convert.py [--only NAME ...] [--again] [--seconds 240] [--minutes 600]
        [--backend inductor]
    python benchmarks/zoo_convert.py --table

Each model of zoo_models.py is converted in a process of its own: initialized by the exact rule,
trained for one step, loaded from its state_dict into a model that was converted without inputs,
compiled and exported to ONNX, as far as the original can be. What a model came to is kept in
results/zoo-convert.json, so a run that ends early goes on where it was.
Models whose package is missing are skipped and named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn

import mpelu
from common import RESULTS, write
from mpelu.graph import arguments, tensors_in
from zoo_models import ZOO

STAGES = ("converted", "initialized", "step", "state_dict", "kept", "compiled", "onnx")
FAR = 1e-3
"""A compiled or exported model is right if it differs by no more than this part of the largest
output."""


def built(name: str) -> tuple[nn.Module, Any]:
    """The model in evaluation mode and a batch, the same in every call."""
    torch.manual_seed(0)
    model, make = ZOO[name]()
    config: Any = getattr(model, "config", None)
    if hasattr(config, "use_cache"):
        config.use_cache = False  # a cache isn't an output that ONNX can return
    return model.eval(), make()


def converted(name: str, **options: Any) -> tuple[nn.Module, Any, mpelu.converting.Conversion]:
    """With functions rewritten where there are no modules to swap."""
    model, batch = built(name)
    try:
        conversion = mpelu.convert(model, batch, **options)
    except ValueError as error:
        if "rewrite=True" not in str(error):
            raise
        conversion = mpelu.convert(model, batch, rewrite=True, **options)
    return conversion.model, batch, conversion


def outputs(model: Callable[..., Any], batch: Any) -> list[Tensor]:
    args, kwargs = arguments(batch)
    return [each for each in tensors_in(model(*args, **kwargs)) if each.is_floating_point()]


def difference(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest, as part of the largest output."""
    largest = max(each.abs().max().item() for each in expected)
    pairs = zip(found, expected, strict=True)
    return max((one - other).abs().max().item() for one, other in pairs) / max(largest, 1e-30)


def stage_converted(name: str) -> dict[str, Any]:
    _, _, conversion = converted(name)
    swapped = conversion.swapped
    return {
        "swapped": len(swapped),
        "left": {f"{row.was} at {row.path}": row.note for row in conversion.left},
        "was": sorted({row.was for row in swapped}),
        "dims": sorted({str(row.dim) for row in swapped}),
        "by_width": sum(len(row.channels) > 1 for row in swapped),
        "guessed": [row.path for row in swapped if "guess" in row.source or row.dim is None],
        "rewritten": bool(conversion.rewritten),
    }


def stage_initialized(name: str) -> dict[str, Any]:
    model, batch, _ = converted(name)
    generator = torch.Generator().manual_seed(0)
    report = mpelu.init.initialize_(model, batch, "exact", generator=generator)
    rows = [row for row in report.rows if row.measured]
    with torch.no_grad():
        finite = all(each.isfinite().all() for each in outputs(model, batch))
    return {"variance": rows[-1].measured, "finite": bool(finite)}


def stage_step(name: str) -> dict[str, Any]:
    """One step of SGD; which alphas and betas have a gradient, and whether the loss went down."""
    model, batch, _ = converted(name)
    mpelu.init.initialize_(model, batch, "exact", generator=torch.Generator().manual_seed(0))
    model.train()
    optimizer = torch.optim.SGD(mpelu.param_groups(model, lr=1e-4), lr=1e-4)
    torch.manual_seed(1)
    loss = outputs(model, batch)[0].square().mean()
    loss.backward()
    learnable = [each.parameter for each in mpelu.activations.learnable_parameters(model)]
    moved = sum(each.grad is not None and bool(each.grad.any()) for each in learnable)
    optimizer.step()
    finite = all(each.isfinite().all() for each in model.parameters())
    return {"parameters": len(learnable), "with_gradient": moved, "finite": bool(finite)}


def stage_state_dict(name: str) -> dict[str, Any]:
    """The state_dict in a model that was converted without inputs."""
    model, batch, conversion = converted(name)
    if conversion.rewritten:
        return {"difference": None, "reason": "rewritten models need inputs"}
    with torch.no_grad():
        for each in mpelu.activations.learnable_parameters(model):
            each.parameter.uniform_(0.5, 1.5)
        fresh, _ = built(name)
        mpelu.convert(fresh)
        fresh.load_state_dict(model.state_dict(), strict=False)
        return {"difference": difference(outputs(fresh, batch), outputs(model, batch))}


def stage_kept(name: str) -> dict[str, Any]:
    try:
        _, _, conversion = converted(name, keep_function=True)
    except ValueError as error:
        return {"difference": None, "reason": str(error).splitlines()[0][:200]}
    errors = [row.error for row in conversion.swapped if row.error is not None]
    return {
        "difference": conversion.difference,
        "swapped": len(conversion.swapped),
        "stated": max(errors, default=None),
    }


def stage_compiled(name: str, backend: str) -> dict[str, Any]:
    return both(name, lambda model, batch: compiled_difference(model, batch, backend))


def compiled_difference(model: nn.Module, batch: Any, backend: str) -> float:
    torch._dynamo.reset()
    whole: Callable[..., Any] = torch.compile(model, fullgraph=True, dynamic=False, backend=backend)
    with torch.no_grad():
        return difference(outputs(whole, batch), outputs(model, batch))


def stage_onnx(name: str) -> dict[str, Any]:
    return both(name, onnx_difference)


def onnx_difference(model: nn.Module, batch: Any) -> float:
    import onnxruntime  # type: ignore[import-untyped]

    args, kwargs = arguments(batch)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        path = str(Path(folder) / "model.onnx")
        program = torch.onnx.export(
            model, args, path, kwargs=kwargs, dynamo=True, verbose=False, optimize=False
        )
        assert program is not None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options)
        values = tensors_in((args, kwargs))
        names = [each.name for each in session.get_inputs()]
        feeds = dict(zip(names, (each.numpy() for each in values), strict=True))
        found = [torch.from_numpy(each) for each in session.run(None, feeds)]
        expected = outputs(model, batch)
    return difference(found[: len(expected)], expected)


def both(name: str, run: Callable[[nn.Module, Any], float]) -> dict[str, Any]:
    """The original first; the converted model where that works."""
    result: dict[str, Any] = {}
    for which in ("original", "converted"):
        model, batch = built(name) if which == "original" else converted(name)[:2]
        try:
            result[which] = run(model.eval(), batch)
        except Exception as error:  # whatever a compiler raises
            lines = f"{type(error).__name__}: {error}".strip().splitlines()
            result[which] = lines[0][:200]
            break
    return result


def run_stage(name: str, stage: str, backend: str) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        function = globals()[f"stage_{stage}"]
        found: dict[str, Any] = function(name, backend) if stage == "compiled" else function(name)
    except ImportError:
        raise
    except Exception as error:  # a result like any other
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
    return {**found, "seconds": round(time.perf_counter() - start, 1)}


def child(name: str, stages: list[str], backend: str) -> None:
    """Prints a line of JSON for each stage."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for stage in stages:
        try:
            found = run_stage(name, stage, backend)
        except ImportError as error:
            found = {"missing": str(error)}
        sys.stdout.write("\n#result " + json.dumps({stage: found}) + "\n")
        sys.stdout.flush()


def run_child(name: str, stages: list[str], seconds: float, backend: str) -> dict[str, Any]:
    """The stages of a model, as many as there was time for."""
    command = [sys.executable, __file__, "--child", name, "--stages", *stages]
    process = subprocess.Popen(
        [*command, "--backend", backend],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
    found: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith("#result "):
            found.update(json.loads(line.removeprefix("#result ")))
    late = {"late": f"no result within {seconds:g} s"}
    return {stage: found.get(stage, late) for stage in stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--again", action="store_true", help="also what is known already")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--minutes", type=float, default=600, help="start no model after these")
    parser.add_argument("--stages", nargs="*", default=list(STAGES))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = read()
    if options.child:
        child(options.child, options.stages, options.backend)
        return
    if options.table:
        sys.stdout.write(markdown(known) + "\n")
        return
    console = Console(width=150)
    end = time.monotonic() + 60 * options.minutes
    for name in ZOO:
        if options.only and not any(part in name for part in options.only):
            continue
        have = known.get(name, {})
        missing = [each for each in options.stages if options.again or each not in have]
        if not missing or time.monotonic() > end:
            continue
        found = run_child(name, missing, options.seconds, options.backend)
        if "missing" in found.get(missing[0], {}):
            console.print(f"skipped {name}: {found[missing[0]]['missing']}")
            continue
        if "compiled" in found:
            found["compiled"]["backend"] = options.backend
        known = read()  # another run may have added to it
        known[name] = {**known.get(name, {}), **found}
        console.print(line_of(name, known[name]))
        write("zoo-convert", {"models": {each: known[each] for each in ZOO if each in known}})


def read() -> dict[str, dict[str, Any]]:
    """What is known of each model."""
    path = RESULTS / "zoo-convert.json"
    models: dict[str, dict[str, Any]] = (
        json.loads(path.read_text())["models"] if path.exists() else {}
    )
    return models


def line_of(name: str, found: dict[str, Any]) -> str:
    cells = row_of(name, found)
    return f"{cells[0]:42s}" + " | ".join(cells[1:])


def row_of(name: str, found: dict[str, Any]) -> list[str]:
    first = found.get("converted", {})
    if "swapped" not in first:
        return [name, first.get("error", "no time")[:60], *[""] * 6]
    left = f", {len(first['left'])} left" if first["left"] else ""
    widths = f", {first['by_width']} by width" if first["by_width"] else ""
    step = found.get("step", {})
    return [
        name,
        f"{', '.join(first['was'])}",
        f"{first['swapped']}{left}{widths}",
        _cell(found.get("initialized"), lambda each: f"{each['variance']:.2g}"),
        _cell(step, lambda each: f"{each['with_gradient']} of {each['parameters']}"),
        _cell(found.get("kept"), lambda each: _number(each["difference"])),
        _cell(found.get("compiled"), _both),
        _cell(found.get("onnx"), _both),
    ]


def _cell(found: dict[str, Any] | None, show: Callable[[dict[str, Any]], str]) -> str:
    if not found:
        return "not run"
    if "late" in found:
        return "no time"
    return "error" if "error" in found else show(found)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0e}"


def _both(found: dict[str, Any]) -> str:
    """Whether the converted model does what the original does."""
    one, other = found.get("original"), found.get("converted")
    if not isinstance(one, float) or one > FAR:
        return "original doesn't"
    return f"yes, {other:.0e}" if isinstance(other, float) and other <= FAR else "no"


def markdown(results: dict[str, dict[str, Any]]) -> str:
    """One line per model."""
    headings = (
        "model", "activations", "swapped", "exact: variance", "alphas and betas with a gradient",
        "keep_function: difference", "compiled", "ONNX",
    )  # fmt: skip
    lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
    lines += ["| " + " | ".join(row_of(name, found)) + " |" for name, found in results.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
