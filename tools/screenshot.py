"""A picture of a page, as the README shows it.

python tools/screenshot.py report/index.html docs/report.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from browser import browser, missing

DRAWN = "return new Promise((done) => setTimeout(done, 500))"


def screenshot(
    page: Path, picture: Path, *, width: int, height: int | None, dark: bool, part: str | None
) -> None:
    """Opens the page in chromium and writes what it looks like.

    Args:
        page: an HTML file.
        picture: the PNG to write.
        width: of the window, in pixels.
        height: of the window; None takes the whole page.
        dark: for readers who prefer dark pages.
        part: id of the part to begin at.
    """
    with browser() as window:
        window.look(width, dark=dark, height=height or 900)
        window.open(page.resolve().as_uri())
        window.wait("return document.querySelector('main section') !== null")
        window.run(DRAWN)
        if part:
            if not window.run("return document.getElementById(arguments[0]) !== null", part):
                sys.exit(f"screenshot: {page}: expected a part {part!r}, got none")
            # What comes into view is drawn, which moves what lies below it.
            for _ in range(2):
                window.run("document.getElementById(arguments[0]).scrollIntoView(true)", part)
                window.run(DRAWN)
        window.picture(picture, whole=height is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="the HTML file")
    parser.add_argument("picture", type=Path, help="the PNG to write")
    parser.add_argument("--width", type=int, default=1400, help="of the window, in pixels (1400)")
    parser.add_argument("--height", type=int, help="of the window (that of the whole page)")
    parser.add_argument("--part", help="id of the part of the page to begin at")
    parser.add_argument("--dark", action="store_true", help="in dark colours")
    chosen = parser.parse_args()
    if absent := missing():
        sys.exit(f"screenshot: expected {absent} to be installed")
    if not chosen.page.is_file():
        sys.exit(f"screenshot: {chosen.page}: expected a page, got none")
    screenshot(
        chosen.page,
        chosen.picture,
        width=chosen.width,
        height=chosen.height,
        dark=chosen.dark,
        part=chosen.part,
    )


if __name__ == "__main__":
    main()
