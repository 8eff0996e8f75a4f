"""`mpelu report`: one page of runs and reproduced tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mpelu.lab.errors import plural

EXAMPLES = """\
examples:
  mpelu report runs
  mpelu report runs out/reproduce -o report.html
  mpelu report runs --serve"""


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="DIR",
        help="run folder, or directory with run folders or results of studies in it",
    )  # fmt: skip
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("report"), metavar="PATH",
        help="page to write if it ends in .html, otherwise directory for index.html "
        "(default: report)",
    )  # fmt: skip
    parser.add_argument(
        "--serve", action="store_true",
        help="write nothing; show the page on 127.0.0.1 and update it while runs go on",
    )  # fmt: skip
    parser.add_argument(
        "--port", type=int, default=8017, metavar="N",
        help="port of --serve; 0 for any free port (default: 8017)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    if arguments.serve:
        _serve(arguments.folders, arguments.port)
        return

    from mpelu.lab.reporting import write_report

    found = write_report(arguments.folders, arguments.out)
    for line in found.problems:
        print(f"mpelu: {line}", file=sys.stderr)
    print(f"{found.page}: {plural(found.tables, 'table')}, {plural(found.runs, 'run')}")


def _serve(folders: list[Path], port: int) -> None:
    from mpelu.lab.reporting.serve import make_server

    try:
        with make_server(folders, port) as server:
            print(f"{server.address} shows the runs as they go; press Ctrl-C to stop", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        print()
