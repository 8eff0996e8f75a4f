"""What `make demo` shows: the kernel in use, its speed beside torch's activations, figure 1."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from figure1 import draw

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "activation.py"


def main(folder: Path) -> None:
    subprocess.run([sys.executable, str(BENCHMARK), "--quick", "--threads", "2"], check=True)
    picture = folder / "figure1.png"
    draw(picture)
    print(f"\nThe shapes of MPELU and its special cases are drawn in {picture}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
