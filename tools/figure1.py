"""Figure 1 of the paper, as `mpelu reproduce figure1` draws it.

python tools/figure1.py docs/figure1.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mpelu.lab.studies.paper.figure1 import figure


def draw(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure().savefig(path, dpi=130)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path, help="the PNG, PDF or SVG to write")
    draw(parser.parse_args().path)
