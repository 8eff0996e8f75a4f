"""What does a call cost whatever the size, and what does `import mpelu` add to `import torch`?

    python benchmarks/overhead.py

Prints the table and writes results/overhead.json.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import mpelu
from common import quantiles, write
from mpelu.lab.timing import interleaved

IMPORT = "import time, torch; s = time.perf_counter(); import mpelu; print(time.perf_counter() - s)"


def main() -> None:
    torch.set_num_threads(1)
    console = Console(width=110)
    x = torch.randn(4, 4, requires_grad=True)
    grad = torch.ones(4, 4)
    modules = {"ReLU": nn.ReLU(), "PReLU": nn.PReLU(4), "MPELU": mpelu.MPELU(4)}

    def both(module: nn.Module) -> None:
        module(x).backward(grad)

    forward = interleaved({n: partial(m, x) for n, m in modules.items()}, 3000, warmup=100)
    total = interleaved({n: partial(both, m) for n, m in modules.items()}, 3000, warmup=100)
    table = Table(title="A call on a 4x4 tensor, microseconds (median)", title_justify="left")
    for heading in ("activation", "forward", "forward + backward"):
        table.add_column(heading, justify="left" if heading == "activation" else "right")
    rows = {n: {"forward": quantiles(forward[n]), "both": quantiles(total[n])} for n in modules}
    for name, row in rows.items():
        table.add_row(name, f"{row['forward']['p50'] * 1e6:.1f}", f"{row['both']['p50'] * 1e6:.1f}")
    console.print(table)
    imports = [
        float(subprocess.check_output([sys.executable, "-c", IMPORT], text=True)) for _ in range(7)
    ]
    console.print(f"import mpelu after import torch: {quantiles(imports)['p50'] * 1e3:.1f} ms")
    write("overhead", {"calls": rows, "import_seconds": quantiles(imports)})


if __name__ == "__main__":
    main()
