"""The compiled kernel: instruction sets, threads, what is kept for backward, in place, install."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import reference
import torch
from torch.testing import assert_close
from ways import needs_native

import mpelu
from mpelu import MPELU
from mpelu.kernels import native

ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["avx512", "avx2", "portable"])
def instructions(request: pytest.FixtureRequest) -> Iterator[str]:
    needs_native()
    before = native.library.mpelu_instructions()
    if not native.library.mpelu_select(request.param.encode()):
        pytest.skip(f"this CPU has no {request.param}")
    yield request.param
    native.library.mpelu_select(before)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
@pytest.mark.parametrize("alpha", [0.7, -0.7])
@pytest.mark.parametrize(
    "shape",
    [(3, 5, 70), (300, 10), (7, 3, 2, 2), (2, 16, 5000), (4099,), (5, 1001), (40, 300, 7, 7)],
)
def test_every_instruction_set(
    instructions: str, shape: tuple[int, ...], alpha: float, dtype: torch.dtype
) -> None:
    assert mpelu.kernels.backend().instructions == instructions
    generator = torch.Generator().manual_seed(5)
    x = (3 * torch.randn(shape, generator=generator)).to(dtype).requires_grad_()
    grad = torch.rand(shape, generator=generator).to(dtype)
    channels = shape[1] if len(shape) > 1 else 1
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    a = (alpha * (1 + torch.rand(channels, generator=generator))).to(wide).requires_grad_()
    b = (0.2 + torch.rand(channels, generator=generator)).to(wide).requires_grad_()
    y = mpelu.mpelu(x, a, b)
    assert reference.units_in_last_place(y, reference.forward(x, a, b)).max() <= 4
    gx, ga, gb = torch.autograd.grad(y, (x, a, b), grad)
    ex, ea, eb = reference.gradients(grad, x, a, b)
    eps = torch.finfo(dtype).eps
    assert ((gx.double() - ex).abs() <= 8 * eps * (1 + ex.abs())).all()
    tolerance = 0.03 if eps > 1e-6 else 1e-5 if eps > 1e-10 else 1e-12
    assert_close(ga.double(), ea, rtol=tolerance, atol=tolerance)
    assert_close(gb.double(), eb, rtol=tolerance, atol=tolerance)


def input_gradient(
    grad: torch.Tensor, input: torch.Tensor, alpha: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    grads = native.backward(grad, input, alpha, beta, 1, False)
    assert grads is not None
    return grads[0]


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 254), (torch.float16, 2046)])
def test_every_half_precision_nan_stays_one(
    instructions: str, dtype: torch.dtype, count: int
) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x = bits.view(dtype)
    x = x[x.isnan()]
    assert x.numel() == count
    for alpha in (1.0, -1.0):
        a, b = torch.tensor([alpha]), torch.ones(1)
        assert mpelu.mpelu(x, a, b).isnan().all()
        assert input_gradient(torch.ones_like(x), x, a, b).isnan().all()


def test_every_float16_is_converted_exactly(instructions: str) -> None:
    bits = torch.arange(-(2**15), 2**15).to(torch.int16)
    x = bits.view(torch.float16)
    x = x[x > 0]
    one = torch.ones(1)
    assert torch.equal(mpelu.mpelu(x, one, one), x)
    assert torch.equal(input_gradient(x, torch.ones_like(x), one, one), x)
    # alpha beta = 1e-3 at y = 0: the products lie between float16 numbers, some are subnormal
    gx = input_gradient(x, torch.zeros_like(x), one * 1e-3, one)
    assert torch.equal(gx, (x.float() * one * 1e-3).half())


@pytest.mark.parametrize("shape", [(64, 16, 40, 40), (4096, 48), (200_003,)])
@pytest.mark.parametrize("alpha", [0.7, -0.7])
def test_result_does_not_depend_on_the_number_of_threads(
    shape: tuple[int, ...], alpha: float
) -> None:
    needs_native()
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(shape, generator=generator).requires_grad_()
    grad = torch.randn(shape, generator=generator)
    channels = shape[1] if len(shape) > 1 else 1
    a = torch.full((channels,), alpha, requires_grad=True)
    b = torch.ones(channels, requires_grad=True)
    threads = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3, 2):
            torch.set_num_threads(count)
            y = mpelu.mpelu(x, a, b)
            results.append((y.detach(), *torch.autograd.grad(y, (x, a, b), grad)))
    finally:
        torch.set_num_threads(threads)
    for result in results[1:]:
        assert all(torch.equal(got, first) for got, first in zip(result, results[0], strict=True))


def kept_tensors(module: torch.nn.Module, x: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """Addresses of what autograd keeps, but for the parameters; and the output."""
    addresses = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        addresses.append(tensor.data_ptr())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = module(x)
    own = {p.data_ptr() for p in module.parameters()}
    return [address for address in addresses if address not in own], y


@pytest.mark.parametrize(
    ("alpha", "beta", "kept"),
    [
        (1.0, 1.0, "output"),
        (98.0, 0.01, "output"),
        (0.0, 1.0, "input"),
        (-1.0, 1.0, "output and bits"),
        ([1.0, 1.0, -1.0, 1.0], 1.0, "output and bits"),
        ([1.0, 0.0, -1.0, 1.0], 1.0, "input"),
        (1e-30, 1.0, "input"),  # so small that the output might lose digits
        ([1.0, 1.0, 0.0, 1.0], 1.0, "input"),  # one channel is enough
    ],
)
def test_one_tensor_is_kept(
    backend: str, alpha: float | list[float], beta: float, kept: str
) -> None:
    x = torch.randn(2, 4, 8, requires_grad=True)
    addresses, y = kept_tensors(MPELU(4, alpha, beta), x)
    assert addresses[0] == (x if kept == "input" else y).data_ptr()
    assert len(addresses) == (2 if kept == "output and bits" else 1)


def test_half_precision_keeps_the_input(backend: str) -> None:
    x = torch.randn(2, 4, 8, dtype=torch.bfloat16, requires_grad=True)
    addresses, _ = kept_tensors(MPELU(4), x)
    assert addresses == [x.data_ptr()]


def test_a_following_convolution_shares_what_is_kept(backend: str) -> None:
    x = torch.randn(2, 4, 8, 8, requires_grad=True)
    net = torch.nn.Sequential(MPELU(4), torch.nn.Conv2d(4, 4, 3))
    addresses, _ = kept_tensors(net, x)
    assert len(addresses) == 2
    assert len(set(addresses)) == 1


@pytest.mark.parametrize("alpha", [0.7, 0.0, -0.7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_in_place(backend: str, alpha: float, dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 8, dtype=dtype, requires_grad=True)
    a = torch.full((3,), alpha, requires_grad=True)
    b = torch.ones(3, requires_grad=True)
    expected = torch.autograd.grad(mpelu.mpelu(x * 1, a, b).sum(), (x, a, b))
    inner = x * 1
    y = mpelu.mpelu(inner, a, b, inplace=True)
    assert y.data_ptr() == inner.data_ptr()
    got = torch.autograd.grad(y.sum(), (x, a, b))
    for left, right in zip(got, expected, strict=True):
        assert_close(left, right)


@pytest.mark.parametrize("alpha", [0.7, -0.7])
def test_second_derivative_in_place(backend: str, alpha: float) -> None:
    x = torch.tensor([-1.0, -0.5, 2.0], requires_grad=True)
    a, b = torch.tensor([alpha]), torch.ones(1)

    def hessian_product(inplace: bool) -> torch.Tensor:
        y = mpelu.mpelu(x * 1, a, b, inplace=inplace)
        (g,) = torch.autograd.grad((y * x.exp()).sum(), x, create_graph=True)
        return torch.autograd.grad((g**2).sum(), x)[0]

    assert_close(hessian_product(True), hessian_product(False))


def test_in_place_on_a_slice(backend: str) -> None:
    base = torch.randn(4, 6, 8)
    expected = base.clone()
    expected[:, ::2] = mpelu.mpelu(base[:, ::2], torch.ones(3), torch.ones(3))
    mpelu.mpelu(base[:, ::2], torch.ones(3), torch.ones(3), inplace=True)
    assert_close(base, expected)


def test_in_place_where_it_is_not_sound_is_an_error(backend: str) -> None:
    one = torch.ones(1)
    x = torch.tensor([-1.0, 2.0, -3.0], requires_grad=True)
    for alpha in (one, -one):
        with pytest.raises(RuntimeError, match="leaf"):
            mpelu.mpelu(x, alpha, one, inplace=True)
    assert x.tolist() == [-1.0, 2.0, -3.0]
    y = mpelu.mpelu(x.exp(), one, one, inplace=True)  # exp needs its output for backward
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def needs_functions() -> None:
    needs_native()
    if native._forward is None:
        pytest.skip("this torch doesn't describe tensors to C")


def gradients(x: torch.Tensor, module: MPELU, grad: torch.Tensor) -> list[torch.Tensor]:
    y = module(x)
    return [y, *torch.autograd.grad(y, (x, module.alpha, module.beta), grad)]


LAYOUTS = {
    "matrix": (torch.randn(5, 6), 1),
    "images": (torch.randn(2, 6, 3, 7), 1),
    "channels_last": (torch.randn(2, 6, 3, 7).contiguous(memory_format=torch.channels_last), 1),
    "tokens": (torch.randn(2, 9, 6), -1),
    "transposed": (torch.randn(6, 5).t(), 1),
    "slice": (torch.randn(5, 12)[:, ::2], 1),
    "negated": (torch._neg_view(torch.randn(5, 6)), 1),
    "expanded": (torch.randn(1, 6).expand(4, 6), 1),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_tensors_read_in_c_and_prepared_in_python_give_the_same_bits(
    monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    needs_functions()
    source, dim = LAYOUTS[name]
    x = source.to(dtype).requires_grad_()
    parameters = torch.float64 if dtype == torch.float64 else torch.float32
    module = MPELU(6, alpha=[0.3, 1, 2, -1, 0, 5], dim=dim, dtype=parameters)
    grad = torch.randn(x.shape, dtype=dtype)
    results = [gradients(x, module, g) for g in (grad, grad[:1].expand_as(x))]
    monkeypatch.setattr(native, "_forward", None)
    monkeypatch.setattr(native, "_backward", None)
    expected = [gradients(x, module, g) for g in (grad, grad[:1].expand_as(x))]
    assert_close(results, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["matrix", "images", "channels_last", "tokens", "transposed"])
def test_dense_tensors_are_not_prepared_in_python(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    needs_functions()
    monkeypatch.delattr(native, "_forward_prepared")
    monkeypatch.delattr(native, "_backward_prepared")
    source, dim = LAYOUTS[name]
    x = source.clone().requires_grad_()
    gradients(x, MPELU(6, dim=dim), torch.empty_like(x).fill_(1.0))


def test_what_c_reads_is_refused_unless_it_fits() -> None:
    needs_functions()
    x, six, five = torch.randn(5, 6), torch.ones(6), torch.ones(5)
    wide, step = torch.ones(6, dtype=torch.float64), torch.ones(12)[::2]
    out, plain, refused = torch.empty(5, 6), 0, 5

    def status(*tensors: torch.Tensor, dim: object = 1, bits: object = None) -> object:
        return native._forward(*tensors, dim, 1, False, True, bits)

    assert status(x, out, six, six) == plain
    for alpha, beta in [(five, five), (six, five), (wide, wide), (six, wide), (step, six)]:
        assert status(x, out, alpha, beta) == refused
    assert status(x, out, six.reshape(1, 6), six.reshape(1, 6)) == refused
    assert status(x, torch.empty(6, 5), six, six) == refused
    assert status(x, torch.empty(6, 5).t(), six, six) == refused
    assert status(x, out.double(), six, six) == refused
    assert status(x.int(), out.int(), six, six) == refused
    assert status(x[:0], out[:0], six, six) == refused
    assert status(x, out, six, six, dim=2) == refused
    assert status(x, out, six, six, dim=-3) == refused
    with pytest.raises(TypeError):
        status(x, out, six, six, dim="1")
    bits = torch.zeros(30 // 8 + 8, dtype=torch.uint8)
    with_bits, needs_bits = 2, 7
    assert status(x, out, -six, six) == needs_bits
    assert status(x, out, -six, six, bits=bits) == with_bits
    for other in (bits[:-1], torch.zeros(22, dtype=torch.uint8)[::2], bits.float(), 7):
        assert status(x, out, -six, six, bits=other) == refused


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


WITHOUT_MEMORY = """
import torch, mpelu
from mpelu.kernels import native

def zero(t):
    return torch._efficientzerotensor(t.shape, dtype=t.dtype)

def freed(t):
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t

def view(t):  # whose address isn't null
    whole = torch.cat([torch.ones(2**21), t.flatten()])
    t = whole[2**21:].view_as(t)
    free(whole)
    return t

def nested(t):
    return torch.nested.nested_tensor(list(t))

def values(*tensors):
    dense = (torch._from_functional_tensor(t) if torch._is_functional_tensor(t) else t
             for t in tensors)
    return [[round(v, 5) for v in t.flatten().tolist()] for t in dense]

def gradients(x, a, b, grad, between=None, **options):
    x, a, b = (t.detach().requires_grad_() for t in (x, a, b))
    y = mpelu.mpelu(x, a, b)
    if between:
        between(x, y)
    return values(*torch.autograd.grad(y, (x, a, b), grad, **options))

def message(use, *arguments, **options):
    try:
        use(*arguments, **options)
    except (RuntimeError, TypeError) as error:
        return str(error)

def free(*tensors):
    for t in tensors:
        t.untyped_storage().resize_(0)

x, g, b = torch.tensor([[-1.0, 2.0], [0.5, -2.0]]), torch.ones(2, 2), torch.tensor([1.0, 2.0])
def check():
    for a in (torch.tensor([0.5, 1.0]), torch.tensor([0.5, -1.0])):  # keeps the output, the input
        uses = {
            "forward": lambda make: values(mpelu.mpelu(make(x), a, b)),
            "shared": lambda make: values(mpelu.mpelu(make(x), 1.0, 1.0)),
            "in place": lambda make: values(mpelu.mpelu(make(x.clone()), a, b, inplace=True)),
            "alpha": lambda make: values(mpelu.mpelu(x, make(a), b)),
            "beta": lambda make: values(mpelu.mpelu(x, a, make(b))),
            "backward": lambda make: gradients(make(x), a, b, g),
            "gradient": lambda make: gradients(x, a, b, make(g)),
        }
        for make, like in ((zero, torch.zeros_like), (torch._to_functional_tensor, torch.clone)):
            for name, use in uses.items():
                if (make, name) == (zero, "in place"):
                    assert "ZeroTensors are immutable" in message(use, make)
                else:
                    assert use(make) == use(like), (make, name, use(make), use(like))
        for name, use in uses.items():
            for make in (freed, view):
                got = message(use, make)
                assert got and "mpelu: expected tensors with memory, got" in got, (name, got)
            if name not in ("alpha", "beta", "gradient"):  # autograd refuses the gradient itself
                got = message(use, nested)
                assert got and got.startswith("mpelu: expected a dense input, got a nested "), got
        for options in ({}, {"create_graph": True}):
            got = message(gradients, x.clone(), a, b, g, free, **options)
            assert got and "storage has 0 bytes" in got, got

    y = x.clone().requires_grad_()
    torch.sgn(mpelu.mpelu(y, 1.0, 1.0)).sum().backward()
    assert y.grad.tolist() == [[0.0, 0.0], [0.0, 0.0]]

if native.library is None:
    check()
else:
    for instructions in (b"avx512", b"avx2", b"portable"):
        if native.library.mpelu_select(instructions):
            check()
"""


@pytest.mark.parametrize("backend", ["", "eager"], ids=["native", "eager"])
def test_tensors_without_memory_are_served_or_refused(backend: str) -> None:
    done = run_python(WITHOUT_MEMORY, MPELU_BACKEND=backend, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr


def test_backend_says_which_and_why() -> None:
    code = "import mpelu; print(mpelu.kernels.backend())"
    assert "MPELU_BACKEND=eager" in run_python(code, MPELU_BACKEND="eager").stdout
    wrong = run_python(code, MPELU_BACKEND="fast")
    assert wrong.returncode != 0
    assert "expected eager, triton or an instruction set of this CPU" in wrong.stderr
    assert "got 'fast'" in wrong.stderr


@pytest.mark.parametrize("damaged", [False, True], ids=["missing", "damaged"])
def test_without_the_library_one_warning_says_so(
    eager_only: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    monkeypatch.setattr(native, "reason", "")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.delenv("MPELU_BACKEND", raising=False)
    if damaged:
        (tmp_path / "_native.so").write_bytes(b"not a library")
    reason = "can't be loaded" if damaged else "was not compiled"
    with pytest.warns(RuntimeWarning, match=f"{reason}.* 14 times as long.* C\\+\\+ compiler"):
        native.load()
    assert mpelu.kernels.backend().name == "eager"
    assert reason in mpelu.kernels.backend().reason
    assert mpelu.mpelu(torch.tensor([-1.0]), 1.0, 1.0) < 0


def test_a_library_of_another_version_is_not_called(
    eager_only: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Structures are passed by their layout, so an old library in a checkout would read garbage."""
    needs_library = Path(mpelu.kernels.__file__).with_name("_native.so")
    if not needs_library.exists():
        pytest.skip("no native kernel")
    monkeypatch.setattr(native, "reason", "")
    monkeypatch.delenv("MPELU_BACKEND", raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    old = needs_library.read_bytes().replace(b"mpelu_abi\0", b"mpelu_abc\0")
    (tmp_path / "_native.so").write_bytes(old)  # as before there was a number
    for _ in range(2):
        with pytest.warns(RuntimeWarning, match="from another version.*setup.py build_ext") as said:
            native.load()
        assert len(said) == 1
        assert native.library is None
        assert "another version" in mpelu.kernels.backend().reason
        assert mpelu.mpelu(torch.tensor([-1.0]), 1.0, 1.0) < 0
        monkeypatch.setattr(native, "__file__", mpelu.kernels.__file__)
        monkeypatch.setattr(native, "_ABI", native._ABI + 1)


def test_on_windows_no_compiler_is_asked_for(
    eager_only: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "reason", "")
    monkeypatch.delenv("MPELU_BACKEND", raising=False)
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.warns(RuntimeWarning, match="no CPU kernel for Windows.*MPELU_BACKEND") as said:
        native.load()
    assert "compiler" not in str(said[0].message)


@pytest.mark.parametrize("capsule", [None, 7, "another name"])
def test_another_table_of_torch_leaves_the_kernel_to_python(
    monkeypatch: pytest.MonkeyPatch, capsule: object
) -> None:
    needs_functions()
    for name in ("library", "reason", "_forward", "_backward"):
        monkeypatch.setattr(native, name, getattr(native, name))
    if capsule == "another name":
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = (
            ctypes.py_object,
            [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
        )
        capsule = new(1, b"dlpack_exchange_api_2", None)
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", capsule)
    native.load()
    assert native.library is not None
    assert native._forward is None
    assert mpelu.kernels.backend().name == "native"
    x = torch.randn(3, 4)
    assert_close(MPELU(4)(x), torch.nn.functional.elu(x))


@pytest.mark.parametrize("compiler", ["found", "missing"])
def test_one_wheel_for_every_python(tmp_path: Path, compiler: str) -> None:
    """With or without a compiler; torch's own OpenMP library is used, so none is in the wheel."""
    pytest.importorskip("setuptools.command.bdist_wheel", reason="setuptools >= 70.1 is missing")
    environment = dict(os.environ)
    if compiler == "missing":
        environment |= {"CC": "/bin/false", "CXX": "/bin/false"}
    else:
        needs_native()
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    command += ["build", "--build-base", str(tmp_path / "build")]
    command += ["bdist_wheel", "--dist-dir", str(tmp_path), "--bdist-dir", str(tmp_path / "wheel")]
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert "-py3-none-" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if ".so" in name or "gomp" in name]
    assert libraries == (["mpelu/kernels/_native.so"] if compiler == "found" else [])


def test_make_demo_installs_torch_and_the_lab_and_make_test_adds_the_rest(tmp_path: Path) -> None:
    if shutil.which("make") is None:
        pytest.skip("make isn't installed")
    for name in ("Makefile", "pyproject.toml", "setup.py", "constraints.txt"):
        shutil.copyfile(ROOT / name, tmp_path / name)

    def installed(target: str) -> list[str]:
        """What making the target would install, in order."""
        done = subprocess.run(
            ["make", "-n", target], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        found = [line.partition(" install ")[2] for line in done.stdout.splitlines()]
        assert all("-c constraints.txt" in line for line in found if line)
        flags = ("--quiet", "--disable-pip-version-check", "-e", "-c", "constraints.txt")
        return [word.strip('"') for line in found for word in line.split() if word not in flags]

    assert installed("demo") == ["torch", ".[lab]"]
    assert installed("test") == ["torch", ".[lab]", "mpelu[dev]"]
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/lab-installed").touch()
    assert installed("demo") == []
    assert installed("test") == ["mpelu[dev]"]
    (tmp_path / ".venv/dev-installed").touch()
    assert installed("test") == []
    for name in ("pyproject.toml", "constraints.txt"):
        later = (tmp_path / ".venv/dev-installed").stat().st_mtime + 10
        os.utime(tmp_path / name, (later, later))
        assert installed("test") == ["torch", ".[lab]", "mpelu[dev]"]
        os.utime(tmp_path / name, (0, 0))


def test_the_source_distribution_has_every_file_that_git_tracks(tmp_path: Path) -> None:
    pytest.importorskip("setuptools.command.bdist_wheel", reason="setuptools >= 70.1 is missing")
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this isn't a git checkout, or git isn't installed")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    tracked = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    assert "tests/core/operator/test_native.py" in tracked, listed.stderr
    source = tmp_path / "source"
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).symlink_to(ROOT / name)
    (source / "src/mpelu/kernels/left.so").touch()  # what a build leaves isn't a source
    command = [sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        files = {each.name.partition("/")[2] for each in file.getmembers() if not each.isdir()}
    made = {name for name in files if ".egg-info/" in name} | {"PKG-INFO", "setup.cfg"}
    # Left out: what only the repository itself reads.
    assert files - made == tracked - {".ci/run", ".gitignore"}
