"""Does the kernel compute on ARM what it should? Cross compiled, and run under qemu.

    python tools/check_arm.py

Compiles the kernel and a small driver for 64-bit ARM (NEON), runs them with user-mode emulation and
compares forward and backward of every dtype and layout with torch in float64. Needs a cross
compiler and qemu; on Debian: apt-get install g++-aarch64-linux-gnu qemu-user.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "helpers"))

import reference  # noqa: E402

COMPILER, EMULATOR, SYSROOT = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"
DTYPES = {
    torch.float32: 0,
    torch.bfloat16: 1,
    torch.float16: 2,
    torch.float64: 3,
}
# outer, channels, inner: planes, planes with a tail, rows, rows with a tail, a few elements
SHAPES = [(3, 4, 64), (2, 3, 70), (50, 24, 1), (5, 1001, 1), (7, 3, 4), (1, 1, 5003), (1, 2, 1)]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 0.02, torch.float16: 0.004, torch.float64: 1e-13}

# Reads a job from standard input as native.py packs it, but with sizes in place of addresses.
DRIVER = r"""
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>
extern "C" int mpelu_forward(const void*);
extern "C" int mpelu_backward(const void*);
extern "C" const char* mpelu_instructions();
int main() {
  int64_t h[6];  // outer, channels, inner, dtype, bytes of an element, bytes of a parameter
  while (fread(h, 8, 6, stdin) == 6) {
    size_t n = h[0] * h[1] * h[2] * h[4], p = h[1] * h[5];
    std::vector<char> x(n), g(n), y(n), gx(n), gy(n), a(p), b(p), ga(p), gb(p), unused(p);
    if (fread(x.data(), 1, n, stdin) != n || fread(g.data(), 1, n, stdin) != n ||
        fread(a.data(), 1, p, stdin) != p || fread(b.data(), 1, p, stdin) != p) return 1;
    struct { void *in, *out, *a, *b; int64_t o, c, i, t, threads; double bound;
             void *g, *ga, *gb; int64_t from_output; } call =
        {x.data(), y.data(), a.data(), b.data(), h[0], h[1], h[2], h[3], 1, 1e-6, g.data(),
         ga.data(), gb.data(), 0};
    if (mpelu_forward(&call) > 1) return 2;
    call.out = gx.data();
    if (mpelu_backward(&call)) return 3;
    if (h[3] == 0 || h[3] == 3) {  // the same from the output
      call.in = y.data(), call.out = gy.data(), call.ga = unused.data(), call.from_output = 1;
      if (mpelu_backward(&call)) return 4;
    }
    fwrite(y.data(), 1, n, stdout);
    fwrite(gx.data(), 1, n, stdout);
    fwrite(gy.data(), 1, n, stdout);
    fwrite(ga.data(), 1, p, stdout);
    fwrite(gb.data(), 1, p, stdout);
  }
  fprintf(stderr, "%s\n", mpelu_instructions());
}
"""


def flags() -> list[str]:
    """The compiler flags of setup.py, without OpenMP."""
    text = (ROOT / "setup.py").read_text()
    return [flag for line in re.findall(r"^FLAGS.*", text, re.M) for flag in json_list(line)]


def json_list(line: str) -> list[str]:
    flags: list[str] = json.loads(line[line.index("[") :])
    return flags


def pack(tensor: Tensor) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())


def unpack(data: bytes, like: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=like.dtype).view(like.shape)


def main() -> None:
    for tool in (COMPILER, EMULATOR):
        if not shutil.which(tool):
            sys.exit(f"check_arm: expected {tool} to be installed")
    generator = torch.Generator().manual_seed(0)
    jobs = []
    for dtype, number in DTYPES.items():
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        for shape in SHAPES:
            x = (3 * torch.randn(shape, generator=generator)).to(dtype)
            g = torch.randn(shape, generator=generator).to(dtype)
            a = (0.5 + torch.rand(shape[1], generator=generator)).to(wide)
            b = (0.2 + torch.rand(shape[1], generator=generator)).to(wide)
            header = torch.tensor([*shape, number, x.element_size(), a.element_size()])
            jobs.append((header, x, g, a, b))
    with tempfile.TemporaryDirectory() as name:
        driver, program = Path(name, "driver.cpp"), Path(name, "driver")
        driver.write_text(DRIVER)
        kernel = ROOT / "src/mpelu/kernels/native.cpp"
        command = [COMPILER, *flags(), str(kernel), str(driver), "-o", str(program)]
        subprocess.run(command, check=True)
        result = subprocess.run(
            [EMULATOR, "-L", SYSROOT, str(program)],
            input=b"".join(pack(tensor) for job in jobs for tensor in job),
            capture_output=True,
            check=True,
        )
    output, worst = result.stdout, dict.fromkeys(DTYPES, 0.0)
    for _, x, g, a, b in jobs:
        parts = []
        for like in (x, x, x, a, a):
            length = like.numel() * like.element_size()
            parts.append(unpack(output[:length], like))
            output = output[length:]
        y, gx, gy, ga, gb = parts
        exact = (reference.forward(x, a, b), *reference.gradients(g, x, a, b))
        sizes = reference.gradients(g.abs(), x, a, b)  # of the sums, before anything cancels
        pairs = [(y, exact[0], exact[0]), (gx, exact[1], sizes[0])]
        pairs += [(ga, exact[2], sizes[1]), (gb, exact[3], sizes[2])]
        if x.dtype in (torch.float32, torch.float64):
            pairs.append((gy, exact[1], sizes[0]))
        for got, expected, size in pairs:
            error = ((got.double() - expected).abs() / (size.abs() + 1)).max().item()
            worst[x.dtype] = max(worst[x.dtype], error)
    if output:
        sys.exit("check_arm: expected no more output")
    for dtype, error in worst.items():
        print(f"{dtype}: {len(SHAPES)} shapes, largest relative error {error:.1e}")
        if not error <= TOLERANCE[dtype]:
            sys.exit(f"check_arm: expected an error below {TOLERANCE[dtype]}")
    print(f"instruction set: {result.stderr.decode().strip()} (NEON)")


if __name__ == "__main__":
    main()
