"""Lints the scripts of the report with ESLint, as `make lint` does.

    python tools/lint_js.py

The scripts of a page share one scope, so they are checked as the page joins them: undefined names,
unused functions and the like are found across files. ESLint is fetched by npx. Where node or the
package isn't available, the check is skipped, which is printed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpelu.lab.errors import plural
from mpelu.lab.reporting.page import EXPLORER_SCRIPTS, REPORT_SCRIPTS, asset, script_of

ESLINT = "eslint@9.39.1"
CONFIG = Path(__file__).with_name("eslint.config.mjs")
SCRIPTS = {"report.js": REPORT_SCRIPTS, "explorer.js": EXPLORER_SCRIPTS}


def main() -> int:
    npx = shutil.which("npx")
    if npx is None:
        print("lint-js: skipped, because npx (of node) isn't installed")
        return 0
    command = [npx, "--yes", ESLINT]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=300)
    if version.returncode:
        errors = [line for line in version.stderr.splitlines() if "error" in line]
        print(f"lint-js: skipped, because {ESLINT} can't be fetched ({'; '.join(errors[:2])})")
        return 0
    found = lint(command)
    for line in found:
        print(line)
    print(f"lint-js: {plural(len(found), 'problem')}")
    return 1 if found else 0


def lint(command: Sequence[str]) -> list[str]:
    """The problems of all scripts, a line each, as FILE:LINE:COLUMN: MESSAGE."""
    with tempfile.TemporaryDirectory() as name:
        for script, parts in SCRIPTS.items():
            Path(name, script).write_text(script_of(parts), encoding="utf-8")
        done = subprocess.run(
            [*command, "--config", str(CONFIG), "--format", "json", *SCRIPTS],
            cwd=name,
            capture_output=True,
            text=True,
            timeout=300,
        )
    try:
        results: list[dict[str, Any]] = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"lint-js: eslint failed: {done.stderr.strip() or done.stdout.strip()}")
    found = set()
    for result in results:
        parts = SCRIPTS[Path(result["filePath"]).name]
        for message in result["messages"]:
            place = "{}:{}".format(*locate(parts, message["line"]))
            rule = f" ({message['ruleId']})" if message["ruleId"] else ""
            found.add(f"{place}:{message['column']}: {message['message']}{rule}")
    return sorted(found)


def locate(parts: Sequence[str], line: int) -> tuple[str, int]:
    """The script and its line at a line of the joined script; both count from 1.

    Example:
        >>> locate(REPORT_SCRIPTS, 3)
        ('math.js', 1)
    """
    line -= script_of(()).count("\n") - 1  # lines before the first script
    for name in parts:
        length = asset(name).count("\n")
        if line <= length:
            return name, line
        line -= length
    return parts[-1], asset(parts[-1]).count("\n")


if __name__ == "__main__":
    sys.exit(main())
