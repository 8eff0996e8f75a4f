"""`mpelu explore`: the activation with sliders for alpha and beta."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

_EXAMPLES = """\
examples:
  mpelu explore
  mpelu explore --no-open -o mpelu.html"""


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("explore", epilog=_EXAMPLES)
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("mpelu-explorer.html"),
        metavar="PATH",
        help="page to write if it ends in .html, otherwise directory for it "
        "(default: mpelu-explorer.html)",
    )
    parser.add_argument("--no-open", action="store_true", help="don't open the page in a browser")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    import webbrowser

    from mpelu.lab.reporting import write_explorer

    page = write_explorer(arguments.out)
    print(page)
    if not arguments.no_open and not webbrowser.open(page.resolve().as_uri()):
        print("no browser found; open the page by hand")
