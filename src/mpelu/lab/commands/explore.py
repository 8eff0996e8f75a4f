"""`mpelu explore`: the activation under two sliders."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "explore", help="write and open a page with sliders for alpha and beta"
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("mpelu-explorer.html"),
        help="file of the page (mpelu-explorer.html)",
    )
    parser.add_argument("--no-open", action="store_true", help="don't open it in a browser")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    import webbrowser

    from mpelu.lab.reporting.files import write_page
    from mpelu.lab.reporting.page import explorer_page

    write_page(chosen.out, explorer_page())
    print(chosen.out)
    if not chosen.no_open and not webbrowser.open(chosen.out.resolve().as_uri()):
        print("no browser found here: open the file in one")
