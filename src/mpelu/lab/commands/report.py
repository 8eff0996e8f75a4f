"""`mpelu report`: one page of runs and reproduced tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add(subparsers: Any) -> None:
    parser = subparsers.add_parser("report", help="write one page that shows runs and tables")
    parser.add_argument(
        "folders",
        nargs="+",
        type=Path,
        metavar="RUNS",
        help="folders of runs, or folders with such in them",
    )
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("report"), help="folder of the page (report)"
    )
    parser.add_argument(
        "--serve",
        action="store_true",
        help="in place of writing it, show the page on 127.0.0.1 and keep it up to date",
    )
    parser.add_argument("--port", type=int, default=8017, help="of --serve; 0: any free one (8017)")
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> None:
    if chosen.serve:
        _serve(chosen.folders, chosen.port)
    else:
        _write(chosen.folders, chosen.out)


def _write(folders: list[Path], out: Path) -> None:
    from mpelu.lab.errors import UserError
    from mpelu.lab.reporting.cache import Cache
    from mpelu.lab.reporting.collect import collect, problems
    from mpelu.lab.reporting.files import write_page
    from mpelu.lab.reporting.page import report_page

    cache = Cache(out / "cache.json")
    collected = collect(folders, cache)
    runs, results = collected["runs"], collected["results"]
    if not runs and not results:
        named = ", ".join(str(folder) for folder in folders)
        raise UserError(f"{named}: expected run folders or a result.json, found none")
    for line in problems(collected):
        print(f"mpelu: {line}", file=sys.stderr)
    page = out / "index.html"
    write_page(page, report_page(collected))
    cache.save()
    whole = [result for result in results if not result["problem"]]
    print(f"{page}: {_count(len(whole), 'table')}, {_count(len(runs), 'run')}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _serve(folders: list[Path], port: int) -> None:
    from mpelu.lab.reporting.serve import make_server

    try:
        with make_server(folders, port) as server:
            print(f"{server.address} shows the runs as they go; Ctrl-C ends it", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        print()
