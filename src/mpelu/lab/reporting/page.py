"""The page: template, styles, scripts and data in one file that asks nothing of any network."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from importlib.resources import files
from typing import Any

CHART = ("dom.js", "axes.js", "draw.js", "pointer.js", "save.js", "chart.js")
EXPLORER = ("math.js", *CHART, "header.js", "cases.js", "explorer.js")
REPORT = (*EXPLORER, "tables.js", "results.js", "curves.js", "depth.js", "learned.js", "runs.js")


def report_page(collected: dict[str, Any], *, live: bool = False) -> str:
    """The report as HTML.

    Args:
        collected: what `collect` returned.
        live: the page asks the server it came from for news.
    """
    return _page("MPELU report", (*REPORT, "page.js"), {**collected, "live": live}, live=live)


def explorer_page() -> str:
    """The explorer of the activation alone, as HTML."""
    return _page("MPELU explorer", (*EXPLORER, "alone.js"), {}, live=False)


def policy(script: str, style: str, *, live: bool) -> str:
    """The Content-Security-Policy: this script and this style run, nothing is loaded."""
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
    r"""JSON that no HTML parser can leave: <, > and & only as escapes, all of it ASCII.

    Example:
        >>> embed("</script>")
        '"\\u003c/script\\u003e"'
    """
    plain = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _page(title: str, scripts: tuple[str, ...], data: dict[str, Any], *, live: bool) -> str:
    script = '(() => {\n"use strict";\n' + "".join(_asset(name) for name in scripts) + "})();\n"
    style = _asset("page.css")
    parts = {
        "policy": policy(script, style, live=live),
        "title": title,
        "style": style,
        "data": embed(data),
        "script": script,
    }
    # In one pass, so that what is put in is never searched for placeholders.
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("template.html"))


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
