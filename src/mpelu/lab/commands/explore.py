"""`mpelu explore`: the activation with sliders for alpha and beta."""

from __future__ import annotations

import argparse
from pathlib import Path

EXAMPLES = """\
examples:
  mpelu explore
  mpelu explore --no-open -o mpelu.html"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("mpelu-explorer.html"), metavar="PATH",
        help="page to write if it ends in .html, otherwise directory for it "
        "(default: mpelu-explorer.html)",
    )  # fmt: skip
    parser.add_argument("--no-open", action="store_true", help="don't open the page in a browser")


def run(arguments: argparse.Namespace) -> None:
    import webbrowser

    from mpelu.lab.reporting import write_explorer

    page = write_explorer(arguments.out)
    print(page)
    if not arguments.no_open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser found; open the page by hand")
