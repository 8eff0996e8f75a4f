"""Saves a picture of a page of the report.

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
    """Opens a page in Chromium and saves a screenshot.

    Args:
        page: the HTML file.
        picture: the PNG file to write.
        width: width of the window, in pixels.
        height: height of the window; None for the height of the whole page.
        dark: whether to prefer the dark color scheme.
        part: id of the element to scroll to.
    """
    with browser() as window:
        window.look(width, dark=dark, height=height or 900)
        window.open(page.resolve().as_uri())
        window.wait("return document.querySelector('main section') !== null")
        window.run(DRAWN)
        if part:
            if not window.run("return document.getElementById(arguments[0]) !== null", part):
                sys.exit(f"screenshot: --part: {page} has no element with id {part!r}")
            # Twice, because drawing what comes into view moves the rest.
            for _ in range(2):
                window.run("document.getElementById(arguments[0]).scrollIntoView(true)", part)
                window.run(DRAWN)
        window.picture(picture, whole=height is None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="HTML file")
    parser.add_argument("picture", type=Path, help="PNG file to write")
    parser.add_argument(
        "--width", type=int, default=1400, help="width of the window, in pixels [1400]"
    )
    parser.add_argument(
        "--height", type=int, help="height of the window, in pixels [the whole page]"
    )
    parser.add_argument("--part", help="id of the element to scroll to")
    parser.add_argument("--dark", action="store_true", help="use the dark color scheme")
    chosen = parser.parse_args()
    if absent := missing():
        sys.exit(f"screenshot: {absent} must be installed")
    if not chosen.page.is_file():
        sys.exit(f"screenshot: {chosen.page}: no such file")
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
