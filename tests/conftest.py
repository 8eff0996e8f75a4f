"""The ways the operator runs; numerical tests go through all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator

import pytest
import torch
from ways import INTERPRETED, Run, needs_native

import mpelu
from mpelu.kernels import native, registry

# A shell starts background jobs deaf to Ctrl-C, and what tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Many small operations: threads would wait for each other more than they'd help.
torch.set_num_threads(1)
# One compiled function serves all tests.
torch._dynamo.config.recompile_limit = 64
# Nor is the width of the terminal that the tests are started from theirs.
os.environ.pop("COLUMNS", None)
# Where the kernel is missing, the processes that tests start need not warn once more.
if native.library is None:
    os.environ.setdefault("MPELU_BACKEND", "eager")

# Started by test_triton.py, in a process whose kernels Triton interprets.
collect_ignore = (
    [] if os.environ.get("TRITON_INTERPRET") else ["core/operator/interpreted_triton.py"]
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """torch.compile for the CPU needs a C++ compiler, which the package doesn't."""
    try:
        return (yield)
    except Exception as error:
        if "InvalidCxxCompiler" in f"{type(error).__name__}: {error}":
            pytest.skip("torch.compile found no C++ compiler")
        raise


@pytest.fixture
def eager_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the kernel had not been compiled."""
    for name in ("library", "_forward", "_backward"):
        monkeypatch.setattr(native, name, None)
    monkeypatch.setattr(registry, "KERNELS", {})


_compiled = torch.compile(mpelu.mpelu, fullgraph=True, dynamic=False)


@pytest.fixture(
    params=["triton"] if INTERPRETED else ["native", "eager", "compiled native", "compiled formula"]
)
def run(request: pytest.FixtureRequest) -> Run:
    """mpelu(input, alpha, beta) on one of its ways."""
    if "native" in request.param:
        needs_native()
    elif request.param != "triton":
        request.getfixturevalue("eager_only")
    return _compiled if "compiled" in request.param else mpelu.mpelu


@pytest.fixture(params=["triton"] if INTERPRETED else ["native", "eager"])
def backend(request: pytest.FixtureRequest) -> str:
    """Either implementation of the registered operator, for tests that are not about values."""
    if request.param == "native":
        needs_native()
    elif request.param == "eager":
        request.getfixturevalue("eager_only")
    name: str = request.param
    return name
