"""Do the core tests pass with the oldest torch that pyproject.toml allows?

    python tools/check_oldest_torch.py [--torch 2.7.1] [--keep DIRECTORY]

Makes a virtual environment in a temporary directory (some GB, since torch brings its CUDA
packages), installs that torch, builds and installs mpelu as a wheel, and runs the tests of the
operator.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ["functional", "modules", "bound", "lazy", "semantics", "native", "transforms"]
TOOLS = ["pytest", "pytest-timeout", "hypothesis", "expecttest", "setuptools>=77", "numpy<2.3"]


def oldest() -> str:
    match = re.search(r'"torch>=([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert match
    return match.group(1)


def run(command: list[str], **environment: str) -> None:
    print("+", " ".join(command), flush=True)
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", default=oldest(), help="version (default: the oldest allowed)")
    parser.add_argument("--keep", type=Path, help="environment to make there, or to use again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = (options.keep or Path(temporary)).resolve()
        python = str(place / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        if not Path(python).exists():
            venv.create(place, with_pip=True)
            run([*pip, f"torch=={options.torch}", *TOOLS])
        wheel = Path(temporary) / "wheel"
        run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(wheel), str(ROOT)])
        run([*pip, "--no-deps", "--force-reinstall", *map(str, wheel.glob("*.whl"))])
        # Deprecations of an old torch are not ours to repair.
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
        run([*command, *(f"tests/core/operator/test_{name}.py" for name in TESTS)], PYTHONPATH="")
    print(f"passed with torch {options.torch}, Python {sys.version.split()[0]}")


if __name__ == "__main__":
    main()
