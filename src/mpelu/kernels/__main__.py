"""Shows what serves each device and dtype here, and whether it agrees with the float64 formula.

    python -m mpelu.kernels [--quick]

On a GPU it also times MPELU and torch's activations. Include the output in bug reports. The exit
status is 1 if a kernel disagrees.
"""

from __future__ import annotations

import argparse
import platform
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import torch

import mpelu
from mpelu.kernels import backend, eager, gpu, measure, registry, selfcheck
from mpelu.kernels.selfcheck import Agreement, Case

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def main(arguments: list[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m mpelu.kernels",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="only the self-checks; no timings")
    options = parser.parse_args(arguments)
    for line in _versions():
        print(line)
    cases = selfcheck.QUICK if options.quick else selfcheck.FULL
    agree = [_check(device, dtype, cases) for device in _devices() for dtype in DTYPES]
    if not torch.cuda.is_available():
        print(f"\ncuda: no GPU was found, so the kernel was not run{_without_gpu()}")
    elif not options.quick:
        _measure(torch.device("cuda", torch.cuda.current_device()))
    print("Other devices and dtypes: plain torch operations")
    return 0 if all(agree) else 1


def _versions() -> Iterator[str]:
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "not installed"
    yield f"mpelu {mpelu.__version__}, torch {torch.__version__}, triton {triton}"
    yield f"Python {platform.python_version()}, {platform.platform()}"
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        yield f"cuda:{index}: {properties.name}, capability {properties.major}.{properties.minor}"


def _without_gpu() -> str:
    served = [str(dtype).removeprefix("torch.") for dtype in registry.KERNELS.get("cuda", {})]
    if not served:
        return f" ({gpu.reason})"
    return f"; triton would serve {', '.join(served)} after its self-check"


def _devices() -> Iterator[torch.device]:
    yield torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        yield torch.device("cuda", index)


def _check(device: torch.device, dtype: torch.dtype, cases: tuple[Case, ...]) -> bool:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = backend(device, dtype)
    print(f"\n{device}, {str(dtype).removeprefix('torch.')}: {found}")
    for warning in caught:
        print(f"  {warning.message}")
    kernel = registry.KERNELS.get(device.type, {}).get(dtype)
    if kernel is None or found.name == "eager":
        kernel = _Formula
    worst: dict[str, Agreement] = {}
    try:
        for case in cases:
            for result in selfcheck.compare(kernel, device, dtype, case):
                before = worst.setdefault(result.result, result)
                if not result.error / result.allowed <= before.error / before.allowed:
                    worst[result.result] = result
    except Exception as error:
        print(f"  {type(error).__name__}: {error}")
        return False
    for result in worst.values():
        print(f"  {'ok ' if result.agrees else 'BAD'} {result}")
    return not caught and all(result.agrees for result in worst.values())


class _Formula:
    """Plain torch operations in the form of a kernel."""

    @staticmethod
    def forward(
        input: torch.Tensor,
        first: torch.Tensor,
        second: torch.Tensor,
        dim: int,
        by_slope: bool = False,
        *_: bool,
    ) -> tuple[torch.Tensor, bool]:
        return eager.forward(input, first, second, dim, by_slope), False

    backward = staticmethod(eager.backward)


def _measure(device: torch.device) -> None:
    print(f"\nforward and forward + backward on {device}, milliseconds per call")
    for dtype in (torch.float32, torch.bfloat16):
        for shape in measure.SHAPES:
            times = measure.milliseconds(shape, device, dtype)
            text = ", ".join(f"{name} {a:.3f} {b:.3f}" for name, (a, b) in times.items())
            print(f"  {str(dtype).removeprefix('torch.')} {shape}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
