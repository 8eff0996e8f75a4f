"""The page: template, styles, scripts and data in one file that loads nothing from the network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from pathlib import Path
from typing import Any

from mpelu.lab import files
from mpelu.lab.errors import UserError
from mpelu.lab.plots import activation_styles
from mpelu.lab.reporting.collection import Cache, collect, problems

CHART = ("dom.js", "axes.js", "draw.js", "pointer.js", "save.js", "chart.js")
EXPLORER = ("math.js", *CHART, "header.js", "cases.js", "explorer.js")
REPORT = (*EXPLORER, "tables.js", "results.js", "curves.js", "depth.js", "learned.js", "runs.js")
REPORT_SCRIPTS = (*REPORT, "page.js")
EXPLORER_SCRIPTS = (*EXPLORER, "alone.js")
"""The scripts of each page, in order. They share one scope."""

REPORT_NAME = "index.html"
EXPLORER_NAME = "mpelu-explorer.html"


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenReport:
    """What `write_report` wrote."""

    page: Path
    tables: int
    runs: int
    problems: tuple[str, ...]
    """What is missing or damaged, a line each."""


def write_report(
    folders: Path | str | Sequence[Path | str], out: Path | str = "report"
) -> WrittenReport:
    """Writes a page that shows all runs and reproduced tables in the folders.

    A cache next to the page makes the next report of the same runs faster.

    Args:
        folders: a run folder or several, or directories that contain run folders or results.
        out: the page, if it ends in .html; otherwise a directory for index.html.

    Raises:
        UserError: if a folder doesn't exist, there is nothing to show, or the page can't be
            written. An existing page is replaced only by a complete one.

    Example:
        >>> found = write_report(["runs", "out"], "report")  # doctest: +SKIP
        >>> found.page, found.problems  # doctest: +SKIP
    """
    if isinstance(folders, (str, Path)):
        folders = [folders]
    page = page_path(Path(out), REPORT_NAME)
    cache = Cache(page.with_suffix(".cache.json"))
    collected = collect([Path(folder) for folder in folders], cache)
    if not collected["runs"] and not collected["results"]:
        named = ", ".join(str(folder) for folder in folders)
        raise UserError(f"{named}: expected run folders or results of studies, found none")
    _write(page, report_page(collected))
    try:
        cache.save()
    except OSError as error:
        raise _write_error(page, error) from error
    return WrittenReport(
        page=page,
        tables=sum(not result["problem"] for result in collected["results"]),
        runs=len(collected["runs"]),
        problems=tuple(problems(collected)),
    )


def write_explorer(out: Path | str = EXPLORER_NAME) -> Path:
    """Writes the explorer of the activation as a page of its own.

    Args:
        out: the page, if it ends in .html; otherwise a directory for mpelu-explorer.html.

    Returns:
        The path of the page.

    Raises:
        UserError: if it can't be written.
    """
    page = page_path(Path(out), EXPLORER_NAME)
    _write(page, explorer_page())
    return page


def page_path(out: Path, name: str) -> Path:
    """Where a page goes: to `out` if it ends in .html, otherwise to a file in that directory.

    Example:
        >>> page_path(Path("report"), "index.html").as_posix()
        'report/index.html'
        >>> page_path(Path("runs.html"), "index.html").as_posix()
        'runs.html'
    """
    return out if out.suffix.lower() in (".html", ".htm") else out / name


def report_page(collected: dict[str, Any], *, live: bool = False) -> str:
    """The report as HTML.

    Args:
        collected: the return value of `collect`.
        live: whether the page asks the server it came from for updates.
    """
    return _page("MPELU report", REPORT_SCRIPTS, {**collected, "live": live}, live=live)


def explorer_page() -> str:
    """The explorer of the activation as HTML."""
    return _page("MPELU explorer", EXPLORER_SCRIPTS, {}, live=False)


def policy(script: str, style: str, *, live: bool) -> str:
    """The Content-Security-Policy: only this script and this style, and nothing is loaded."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "img-src data: blob:",
            "connect-src 'self'" if live else "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def embed(value: Any) -> str:
    r"""ASCII JSON that can't end an HTML element: <, > and & are escaped.

    Example:
        >>> embed("</script>")
        '"\\u003c/script\\u003e"'
    """
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def script_of(names: Sequence[str]) -> str:
    """The scripts with these names as one, in a scope of their own."""
    return '(() => {\n"use strict";\n' + "".join(asset(name) for name in names) + "})();\n"


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return (resources(__package__) / "assets" / name).read_text(encoding="utf-8")


def _page(title: str, scripts: tuple[str, ...], data: dict[str, Any], *, live: bool) -> str:
    script, style = script_of(scripts), asset("page.css") + activation_styles()
    parts = {
        "policy": policy(script, style, live=live),
        "title": title,
        "style": style,
        "data": embed(data),
        "script": script,
    }
    # In one pass, so that inserted text is never searched for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], asset("template.html"))


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _write(page: Path, content: str) -> None:
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        files.write(page, content, durable=False)
    except OSError as error:
        raise _write_error(page, error) from error


def _write_error(page: Path, error: OSError) -> UserError:
    return UserError(f"{page}: can't be written: {error.strerror or error}")
