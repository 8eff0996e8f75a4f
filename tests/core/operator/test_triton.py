"""The GPU kernels without a GPU: in Triton's interpreter, compiled ahead of time, and refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses import FakeTensorMode

import mpelu
from mpelu.kernels import eager, gpu, measure, registry
from mpelu.kernels.__main__ import main as report
from mpelu.kernels.layout import TILE, Tiling, tiling

TESTS = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="the package triton is not installed"
)

# Left out: a million elements, which take the interpreter minutes; and what keeps the output.
SUITE = "triton and not million and not gradients_in_saturation and not wide_rows"
SUITE += " and not in_half_precision"
SUITE += " and not what_is_kept_follows and not changes_in_place"
# numpy warns where a GPU just gives inf or NaN
QUIET = ("overflow", "invalid value", "divide by")


@needs_triton
@pytest.mark.parametrize(
    ("files", "selection", "at_least"),
    [
        (("interpreted_triton.py",), "", 70),
        (("test_functional.py", "test_semantics.py", "test_transforms.py"), SUITE, 76),
    ],
    ids=["kernels", "operator"],
)
def test_the_kernels_pass_in_the_interpreter(
    files: tuple[str, ...], selection: str, at_least: int
) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", selection]
    command += [str(TESTS / name) for name in files]
    for text in QUIET:
        command += ["-W", f"ignore:{text}:RuntimeWarning"]
    done = subprocess.run(
        command,
        cwd=TESTS.parents[2],
        env={**os.environ, "TRITON_INTERPRET": "1", "MPELU_BACKEND": "triton"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= at_least, done.stdout[-200:]


# --- Compiled ahead of time ----------------------------------------------------------------------

# size, channels, consecutive elements of a channel
PLANES, COLUMNS, SHARED = (2**23, 64, 1024), (2**22, 512, 1), (2**20, 1, 1)
SMALL_IMAGES, HUGE = (2**23 + 2048 * 49, 2048, 49), (2**31, 64, 1024)
KERNELS = [
    ("forward_kernel", torch.float32, PLANES),
    ("forward_kernel", torch.float32, HUGE),
    ("forward_kernel", torch.float16, SMALL_IMAGES),
    ("forward_kernel", torch.bfloat16, COLUMNS),
    ("backward_kernel", torch.float32, PLANES),
    ("backward_kernel", torch.float32, SMALL_IMAGES),
    ("backward_kernel", torch.bfloat16, COLUMNS),
    ("backward_kernel", torch.bfloat16, HUGE),
    ("backward_kernel", torch.float16, SHARED),
    ("finish_kernel", torch.float32, COLUMNS),
]
POINTERS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


def compiled(
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    by_slope: bool,
    *target: object,
) -> Any:
    """A kernel as a launch for this shape would compile it, for a GPU that isn't here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from mpelu.kernels import triton as kernels

    function = getattr(kernels, name)
    plan = tiling(*shape, sums=name != "forward_kernel")
    numbers = dict(
        zip(("size", "width", "group", "inner", "channels"), kernels._arguments(plan), strict=True)
    )
    numbers |= {"tiles": plan.tiles, "splits": plan.splits, "rows": plan.splits}
    constants: dict[str, Any] = {
        **kernels._constants(plan, by_slope),
        "CHANNELS": 16,
        "COUNT": TILE // 16,
    }
    signature: dict[str, str] = {}
    attributes = {}
    for index, argument in enumerate(function.arg_names):
        value = numbers.get(argument)
        if argument in constants or value == 1:  # Triton makes a constant of 1
            signature[argument] = "constexpr"
            constants.setdefault(argument, 1)
        elif value is not None:
            signature[argument] = "i64" if value >= 2**31 else "i32"
        else:
            tensors = ("source", "output", "grad", "grad_input")
            signature[argument] = POINTERS[dtype if argument in tensors else torch.float32]
        if signature[argument] != "constexpr" and (value is None or value % 16 == 0):
            attributes[(index,)] = [["tt.divisibility", 16]]
    constants = {key: constants[key] for key in signature if signature[key] == "constexpr"}
    source = ASTSource(function, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget(*target), options=dict(kernels._OPTIONS))


def resources(cubin: bytes, folder: Path) -> dict[str, int]:
    """Registers per thread, and bytes of stack and local memory, where spills would go."""
    import triton

    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    shown = subprocess.run(
        [tool, "--dump-resource-usage", path], capture_output=True, text=True, check=True
    ).stdout
    return {
        name: int(re.findall(rf"{name}:(\d+)", shown)[-1]) for name in ("REG", "STACK", "LOCAL")
    }


@needs_triton
@pytest.mark.parametrize("by_slope", [False, True], ids=["alpha, beta", "slope, rate"])
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("name", "dtype", "shape"), KERNELS)
def test_compiles_ahead_of_time_without_spills_or_atomics(
    name: str,
    dtype: torch.dtype,
    shape: tuple[int, int, int],
    capability: int,
    by_slope: bool,
    tmp_path: Path,
) -> None:
    kernel = compiled(name, dtype, shape, by_slope, "cuda", capability, 32)
    ptx = kernel.asm["ptx"]
    assert f".target sm_{capability}" in ptx
    assert not re.search(r"\b(atom|red)\.", ptx)
    used = resources(kernel.asm["cubin"], tmp_path)
    assert used["STACK"] == used["LOCAL"] == 0
    # 8 programs of 128 threads fit a multiprocessor, or 5
    assert 16 <= used["REG"] <= (96 if by_slope else 64)
    if name != "finish_kernel":  # 16 bytes per thread and access
        assert re.search(r"ld\.global\S*\.v4", ptx)
        assert re.search(r"st\.global\S*\.v4", ptx)


@needs_triton
def test_compiles_ahead_of_time_for_amd() -> None:
    kernel = compiled("backward_kernel", torch.float32, PLANES, True, "hip", "gfx942", 64)
    assert kernel.asm["hsaco"]
    assert "atomic" not in kernel.asm["amdgcn"]


# --- Tiles ---------------------------------------------------------------------------------------


def programs(plan: Tiling) -> list[torch.Tensor]:
    """Offsets that each program reads, as the kernels calculate them."""
    found = []
    for program in range(plan.programs):
        block = program % plan.blocks
        which = program // plan.blocks % (plan.width // plan.group)
        split = program // plan.blocks // (plan.width // plan.group)
        inside = block * plan.block_columns + torch.arange(plan.block_columns)
        columns = (which * plan.group + inside)[inside < plan.group]
        first = split * plan.tiles * plan.block_rows
        rows = first + torch.arange(plan.tiles * plan.block_rows)
        offsets = (rows[:, None] * plan.width + columns).flatten()
        found.append(offsets[offsets < plan.size])
    return found


@given(st.integers(1, 40), st.integers(1, 70), st.integers(1, 130), st.booleans())
@settings(max_examples=150, deadline=None)
def test_tiles_cover_every_element_once(outer: int, channels: int, inner: int, sums: bool) -> None:
    plan = tiling(outer * channels * inner, channels, inner, sums)
    offsets = programs(plan)
    assert torch.equal(torch.cat(offsets).sort().values, torch.arange(plan.size))
    assert plan.block_rows * plan.block_columns <= TILE
    for size in (plan.block_rows, plan.block_columns):
        assert size & (size - 1) == 0  # a power of two
    if plan.planes and channels > 1:  # one channel per program
        assert all((o // inner % channels).unique().numel() <= 1 for o in offsets)


@given(st.integers(1, 2**20), st.integers(1, 2**14), st.integers(1, 2**20), st.booleans())
def test_offsets_of_32_bits_never_overflow(
    outer: int, channels: int, inner: int, sums: bool
) -> None:
    """Also masked ones, which would otherwise turn negative and count as inside."""
    plan = tiling(outer * channels * inner, channels, inner, sums)
    rows = plan.splits * plan.tiles * plan.block_rows
    largest = (rows - 1) * plan.width + plan.width - plan.group + plan.blocks * plan.block_columns
    assert plan.is_wide or largest < 2**31
    assert plan.size < 2**31 or plan.is_wide
    assert plan.programs < 2**31 or plan.size > 2**36  # a grid's limit in x


# --- The self-check ------------------------------------------------------------------------------


def wrong_output(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: (run(*args)[0] * (1 + 1e-5), False)


def wrong_sum(run: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any) -> Any:
        gx, ga, gb = run(*args)
        return gx, ga, gb + gb.abs().max() * 1e-3

    return broken


def failing(run: Callable[..., Any]) -> Callable[..., Any]:
    def broken(*args: Any) -> Any:
        raise RuntimeError("no C compiler\nand more lines")

    return broken


BREAKS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "wrong output": ("forward", wrong_output, "the output differs from float64 by"),
    "wrong sum": ("backward", wrong_sum, "the gradient of beta differs from float64 by"),
    "compiler": ("forward", failing, "RuntimeError: no C compiler[)]"),
}


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A kernel in the place of Triton's, for tensors on the CPU."""
    kernel = SimpleNamespace(
        forward=lambda x, a, b, dim, form=False, *_: (eager.forward(x, a, b, dim, form), False),
        backward=eager.backward,
    )
    monkeypatch.delenv("MPELU_BACKEND", raising=False)
    monkeypatch.setattr(gpu, "_verdicts", {})
    monkeypatch.setattr(gpu, "import_module", lambda name: kernel)
    monkeypatch.setattr(registry, "KERNELS", {"cpu": dict.fromkeys(gpu.DTYPES, gpu)})
    return kernel


@pytest.mark.parametrize("name", BREAKS)
def test_a_kernel_that_differs_is_refused_and_the_numbers_stay_right(
    name: str, kernel: SimpleNamespace
) -> None:
    where, broken, message = BREAKS[name]
    setattr(kernel, where, broken(getattr(kernel, where)))
    x = torch.linspace(-5, 2, 60).reshape(4, 3, 5).requires_grad_()
    a = torch.tensor([0.5, 1.0, 2.0], requires_grad=True)
    b = torch.tensor([1.0, 0.5, 2.0], requires_grad=True)
    with pytest.warns(RuntimeWarning, match=f"on cpu for torch.float32, .*{message}") as caught:
        y = mpelu.mpelu(x, a, b)
    assert len(caught) == 1
    grads = torch.autograd.grad(y.sum(), (x, a, b))  # without another warning
    assert reference.units_in_last_place(y, reference.forward(x, a, b)).max() <= 4
    exact = reference.gradients(torch.ones_like(x), x, a, b)
    for got, expected in zip(grads, exact, strict=True):
        assert (got.double() - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert mpelu.kernels.backend().name == "eager"
    assert "the self-check failed" in mpelu.kernels.backend().reason


def test_a_kernel_that_agrees_is_checked_once_per_dtype(kernel: SimpleNamespace) -> None:
    calls = []
    run = kernel.forward

    def counted(x: torch.Tensor, *args: Any) -> Any:
        calls.append(x.dtype)
        return run(x, *args)

    kernel.forward = counted
    state = torch.get_rng_state()
    for _ in range(2):
        mpelu.mpelu(torch.zeros(2, 3), torch.ones(3), torch.ones(3))
    assert calls == [torch.float32] * 6  # four checks, two calls
    mpelu.mpelu(torch.zeros(2, 3).half(), torch.ones(3), torch.ones(3))
    assert calls[6:] == [torch.float16] * 5
    assert torch.equal(torch.get_rng_state(), state)
    assert mpelu.kernels.backend().name == "triton"


def test_the_check_does_not_depend_on_the_default_device(kernel: SimpleNamespace) -> None:
    with torch.device("meta"):
        assert gpu.verdict(torch.device("cpu"), torch.float32).kernel is kernel


def test_the_report_says_what_serves_and_fails_if_it_disagrees(
    kernel: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(["--quick"]) == 0
    shown = capsys.readouterr().out
    assert "cpu, float16: triton: agreed with the formula in the self-check" in shown
    assert "cpu, float64: eager: " in shown
    assert shown.count("  ok  ") == 24
    gpu._verdicts.clear()
    kernel.forward = wrong_output(kernel.forward)
    assert report(["--quick"]) == 1
    shown = capsys.readouterr().out
    assert "cpu, float32: eager: the self-check failed (images: the output differs" in shown


def test_the_report_runs_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert report([]) == 0
    shown = capsys.readouterr().out
    assert str(mpelu.kernels.backend()) in shown
    assert torch.cuda.is_available() or "no GPU was found, so the kernel was not run" in shown


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_times_are_measured_on_any_device(dtype: torch.dtype) -> None:
    shape = measure.Shape((2, 3, 4, 4), channels_last=True)
    times = measure.milliseconds(shape, torch.device("cpu"), dtype, rounds=1)
    assert list(times) == ["mpelu", "the formula", "nn.PReLU", "nn.ELU", "nn.ReLU"]
    assert all(forward > 0 and both > 0 for forward, both in times.values())


def test_the_roofline_is_marked_as_a_calculation() -> None:
    """5 passes of 4 bytes for us and ReLU, 7 for PReLU: forward 2, backward 3 or 5."""
    script = TESTS.parents[2] / "benchmarks" / "roofline.py"
    done = subprocess.run(
        [sys.executable, script, "--dry"], capture_output=True, text=True, check=True
    ).stdout
    assert done.count("CALCULATED, not measured") == 2
    for name, total in (("mpelu, Triton", 20.0), ("nn.ReLU", 20.0), ("nn.PReLU", 28.0)):
        assert re.search(rf"{name}[^│]*│ +{total} │", done), done
    assert torch.cuda.is_available() or "nothing was measured" in done


# --- What is chosen ------------------------------------------------------------------------------


def test_compilers_get_the_formula_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    registered = {device: dict.fromkeys(gpu.DTYPES, gpu) for device in ("cpu", "cuda")}
    monkeypatch.setattr(registry, "KERNELS", registered)
    with FakeTensorMode():
        x = torch.empty(2, 3, device="cuda")
        assert registry.find(x) is gpu
        assert registry.route(x, x, x) == "formula"


def test_without_triton_the_formula_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KERNELS", {})
    monkeypatch.setattr(gpu, "reason", "")
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    monkeypatch.setenv("MPELU_BACKEND", "")
    gpu.load()
    assert registry.KERNELS == {}
    assert mpelu.kernels.backend("cuda").reason == "the package triton is not installed"
    monkeypatch.setenv("MPELU_BACKEND", "triton")
    with pytest.raises(ImportError, match="MPELU_BACKEND=triton requires the package triton"):
        gpu.load()


def test_eager_in_the_environment_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KERNELS", {})
    monkeypatch.setattr(gpu, "reason", "")
    monkeypatch.setattr(gpu, "find_spec", lambda name: True)
    monkeypatch.setenv("MPELU_BACKEND", "eager")
    gpu.load()
    assert registry.KERNELS == {}
    monkeypatch.setenv("MPELU_BACKEND", "avx2")  # says something about the CPU alone
    gpu.load()
    assert list(registry.KERNELS) == ["cuda"]
    assert list(registry.KERNELS["cuda"]) == list(gpu.DTYPES)


def test_triton_is_not_imported_before_it_is_needed() -> None:
    code = "import sys, torch; before = 'triton' in sys.modules; import mpelu; "
    code += "assert before or 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
